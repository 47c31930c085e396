"""Core tools that tell what differs between versions or lines of work."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cks_mcp.answers import Result
from cks_mcp.calls import Toolset
from cks_mcp.plain import dump_json
from cks_mcp.services import Ctx
from cks_mcp.tools.common import (
    Args,
    Changed,
    Cursor,
    Limit,
    SessionId,
    VersionId,
    changed_of,
    from_cursor,
    page_of,
    session_or_default,
    to_cursor,
    wrong_cursor,
)
from cks_mcp.trimming import trimmed
from cks_runtime.flow.graphs import in_worker
from cks_runtime.flow.remote_lines import check_line_id
from cks_runtime.model.canon import Json
from cks_runtime.model.diff import graph_diff, object_diff
from cks_runtime.model.errors import InvalidParameter
from cks_runtime.model.explain_diff import explain
from cks_runtime.model.history import Version
from cks_runtime.store.sessions import SessionRow

comparisons = Toolset("core")

DIFF_BYTES = 24_000
SUMMARY_BYTES = 6_000
LEAST_BYTES = 500  # in less room an entry would be cut beyond use


class CompareArgs(Args):
    session_id: SessionId = None
    from_: Annotated[
        str | None,
        Field(alias="from", description="Version id or session id. Default: what `to` was made from."),
    ] = None
    to: Annotated[str | None, Field(description="Version id or session id. Default: the head.")] = None
    limit: Annotated[Limit, Field(description="Changed objects a page.")] = 50
    cursor: Cursor = None


class Comparison(Result):
    session_id: str
    from_version_id: str
    to_version_id: str
    changed: Changed
    objects: list[dict[str, Any]]
    next_cursor: str | None = None


@comparisons.tool(read_only=True)
async def compare_versions(ctx: Ctx, args: CompareArgs) -> Comparison:
    """What changed between two versions, object by object and field by field.

    Without arguments: what the head changed. For an account in words, or of two diverged lines, use explain_diff.
    """
    rt = ctx.app.rt
    row = await rt.sessions.get(session_or_default(ctx, args.session_id))
    scope = (row.session_id, args.from_, args.to)
    # a further page goes on with the versions of the first, wherever the heads are by now
    place = from_cursor("compare", args.cursor, list, *scope)
    start = ""
    if place is None:
        before, after = await _compared(ctx, row, args)
    else:
        old_id, new_id, start = _compare_place(place, args.cursor or "")
        before, after = await rt.sessions.version(old_id), await rt.sessions.version(new_id)
    left, right = await rt.sessions.graph_of(before), await rt.sessions.graph_of(after)
    diff = await in_worker(lambda: graph_diff(left, right))
    rest = sorted((*diff.added, *diff.updated, *diff.removed), key=lambda change: change[0])
    rest = [change for change in rest if change[0] > start]
    shown = [{"object_id": id, **(object_diff(old, new) or {})} for id, old, new in rest[: args.limit]]
    shown = page_of(shown, DIFF_BYTES)
    last: list[Json] = [before.id.hex(), after.id.hex(), rest[len(shown) - 1][0] if shown else ""]
    return Comparison(
        session_id=row.session_id,
        from_version_id=before.id.hex(),
        to_version_id=after.id.hex(),
        changed=changed_of(diff),
        objects=shown,
        next_cursor=to_cursor("compare", last, *scope) if len(shown) < len(rest) else None,
    )


async def _compared(ctx: Ctx, row: SessionRow, args: CompareArgs) -> tuple[Version, Version]:
    """The two versions that are meant, by the defaults of the arguments."""
    sessions, own = ctx.app.rt.sessions, await ctx.app.rt.graphs.version(row.head)
    after, other = (own, None) if args.to is None else await sessions.version_or_session(args.to, "to")
    if args.from_ is not None:
        return (await sessions.version_or_session(args.from_, "from"))[0], after
    if other is not None and other != row.session_id:
        return own, after
    return await sessions.parent_of(row.session_id, after), after


def _compare_place(place: list[Any], cursor: str) -> tuple[str, str, str]:
    match place:
        case [str(before), str(after), str(start)]:
            return before, after, start
        case _:
            raise wrong_cursor(cursor)


class ExplainDiffArgs(Args):
    session_id: SessionId = None
    target_version_id: Annotated[VersionId | None, Field(description="From this version to the head.")] = None
    other_session_id: Annotated[str | None, Field(description="From our head to theirs.")] = None


class DiffAccount(Result):
    session_id: str
    from_version_id: str
    to_version_id: str
    summary: str
    added: list[dict[str, Any]]
    removed: list[dict[str, Any]]
    modified: list[dict[str, Any]]
    relinked_relations: list[dict[str, Any]]
    inference_changes: list[dict[str, Any]]
    totals: dict[str, int]
    base_version_id: str | None = None
    base_version_ids: list[str] | None = None


@comparisons.tool(read_only=True)
async def explain_diff(ctx: Ctx, args: ExplainDiffArgs) -> DiffAccount:
    """A readable account of a difference: from an earlier version to the head (target_version_id), or between two
    lines with what they had in common (other_session_id). Use it before a merge; for paging use compare_versions.
    """
    rt = ctx.app.rt
    row = await rt.sessions.get(session_or_default(ctx, args.session_id))
    if (args.target_version_id is None) == (args.other_session_id is None):
        raise InvalidParameter(
            "Give exactly one of target_version_id and other_session_id.",
            "A version to see what came after it; a session to compare two lines.",
            argument="target_version_id",
        )
    own = await rt.graphs.version(row.head)
    bases: tuple[bytes, ...] = ()
    if args.other_session_id is not None:
        other = await rt.sessions.get(check_line_id(args.other_session_id, "other_session_id"))
        before, after = own, await rt.graphs.version(other.head)
        bases = await rt.graphs.merge_bases(row.head, other.head)
    else:
        assert args.target_version_id is not None
        before, after = await rt.sessions.version(args.target_version_id, "target_version_id"), own
    return await _account(ctx, row.session_id, before, after, bases)


async def _account(
    ctx: Ctx, session_id: str, before: Version, after: Version, bases: tuple[bytes, ...]
) -> DiffAccount:
    rt = ctx.app.rt
    left, right = await rt.sessions.graph_of(before), await rt.sessions.graph_of(after)
    ground = None
    if bases:
        ground = await rt.sessions.graph_of(await rt.graphs.version(bases[0]))
    told: dict[str, Any] = await in_worker(lambda: explain(left, right, ground))
    parts: dict[str, list[dict[str, Any]]] = {
        name: told[name]
        for name in ("modified", "inference_changes", "relinked_relations", "added", "removed")
    }
    room, kept = DIFF_BYTES, {}
    for name, entries in parts.items():
        kept[name] = page_of(entries, room) if room > LEAST_BYTES else []
        room -= sum(len(dump_json(entry)) + 1 for entry in kept[name])
    return DiffAccount(
        session_id=session_id,
        from_version_id=before.id.hex(),
        to_version_id=after.id.hex(),
        summary=trimmed({"text": told["summary"]}, SUMMARY_BYTES)["text"],
        totals={name: len(entries) for name, entries in parts.items()},
        base_version_id=bases[0].hex() if bases else None,
        base_version_ids=[base.hex() for base in bases] if len(bases) > 1 else None,
        **kept,
    )
