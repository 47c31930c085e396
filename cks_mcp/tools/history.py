"""Core tools that list sessions and their versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cks_mcp.answers import Result, fitting
from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_mcp.tools.common import (
    Args,
    Cursor,
    Limit,
    SessionId,
    from_cursor,
    session_or_default,
    to_cursor,
    version_json,
    wrong_cursor,
)
from cks_runtime.flow.remote_lines import line_of
from cks_runtime.flow.sessions import HistoryPage
from cks_runtime.model.canon import Hash, Json
from cks_runtime.model.times import format_ms
from cks_runtime.store.sessions import SessionRow

history = Toolset("core")

FRONTIER_MAX = 64


class ListSessionsArgs(Args):
    state: Literal["open", "closed", "remote"] | None = None
    limit: Limit = 50
    cursor: Cursor = None


class SessionList(Result):
    sessions: list[dict[str, Any]]
    next_cursor: str | None = None


@history.tool(read_only=True)
async def list_sessions(ctx: Ctx, args: ListSessionsArgs) -> SessionList:
    """The sessions (lines of work) with their heads, by id; open and closed ones unless state says otherwise.

    state=remote lists the other sides of open gossip conflicts, `<session>@<replica>`: read only.
    """
    rt = ctx.app.rt
    after = from_cursor("sessions", args.cursor, str, args.state) or ""
    if args.state == "remote":
        rows = await rt.sessions.remote_page(after, args.limit + 1)
    else:
        closed = None if args.state is None else args.state == "closed"
        rows = await rt.sessions.page(closed, after, args.limit + 1)
    page = rows[: args.limit]
    sizes = await rt.sessions.sizes([row.root for row in page])
    shown = [_session(row, sizes[row.root]) for row in page]
    count = fitting(shown)
    more = len(rows) > args.limit or count < len(shown)
    return SessionList(
        sessions=shown[:count],
        next_cursor=to_cursor("sessions", page[count - 1].session_id, args.state) if more else None,
    )


def _session(row: SessionRow, objects: int | None) -> dict[str, Any]:
    fork = (
        {"session_id": row.fork_session, "version_id": row.fork_version.hex()} if row.fork_session else None
    )
    return {
        "session_id": row.session_id,
        "title": row.title,
        "state": "remote" if line_of(row.session_id) else "closed" if row.closed else "open",
        "head": row.head.hex(),
        "objects": objects,
        "fork": fork,
        "created_at": format_ms(row.created_at_ms),
        "moved_at": format_ms(row.moved_at_ms),
    }


class ListVersionsArgs(Args):
    session_id: SessionId = None
    limit: Limit = 50
    cursor: Cursor = None


class VersionList(Result):
    session_id: str
    versions: list[dict[str, Any]]
    next_cursor: str | None = None


@history.tool(read_only=True)
async def list_versions(ctx: Ctx, args: ListVersionsArgs) -> VersionList:
    """The history of a session, newest first: the head, then every version before its parents."""
    rt = ctx.app.rt
    row = await rt.sessions.get(session_or_default(ctx, args.session_id))
    given = from_cursor("versions", args.cursor, list, row.session_id)
    place = _Place(row.head, 0, ()) if given is None else _place(given, args.cursor or "")
    found = await _history(ctx, place, args.limit)
    sizes = await rt.sessions.sizes([version.root for version in found.versions])
    shown = [
        {**version_json(version), "counts": {"objects": sizes[version.root]}} for version in found.versions
    ]
    if (count := fitting(shown)) < len(shown):
        found = await _history(ctx, place, count)
    return VersionList(
        session_id=row.session_id,
        versions=shown[:count],
        next_cursor=_after(place, count, found.frontier).cursor(row.session_id) if found.frontier else None,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """A place in the history of `head`: `skip` versions down, where `frontier` is next (empty: too wide to tell)."""

    head: Hash
    skip: int
    frontier: tuple[Hash, ...]

    def cursor(self, session_id: str) -> str:
        keys: list[Json] = [key.hex() for key in self.frontier]
        return to_cursor("versions", [self.head.hex(), self.skip, keys], session_id)


def _after(place: _Place, count: int, frontier: tuple[Hash, ...]) -> _Place:
    return _Place(place.head, place.skip + count, frontier if len(frontier) <= FRONTIER_MAX else ())


def _place(given: list[Any], cursor: str) -> _Place:
    try:
        head, skip, keys = given
        hashes = [bytes.fromhex(key) for key in (head, *keys)]
    except (TypeError, ValueError):
        raise wrong_cursor(cursor) from None
    sane = isinstance(skip, int) and 0 <= skip < 1 << 40 and len(hashes) <= FRONTIER_MAX + 1
    if not sane or any(len(key) != 32 for key in hashes):
        raise wrong_cursor(cursor)
    return _Place(hashes[0], skip, tuple(hashes[1:]))


async def _history(ctx: Ctx, place: _Place, limit: int) -> HistoryPage:
    sessions = ctx.app.rt.sessions
    if place.frontier:
        return await sessions.history(place.frontier, limit)
    found = await sessions.history([place.head], place.skip + limit)
    return HistoryPage(found.versions[place.skip :], found.frontier)
