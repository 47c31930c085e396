"""Core tools about lines of work: sessions, versions, comparisons, branches and merges."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cks_mcp.answers import Result, fitting
from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_mcp.tools.common import (
    Args,
    Changed,
    Cursor,
    Limit,
    SessionId,
    VersionId,
    changed,
    changed_of,
    from_cursor,
    session_or_default,
    to_cursor,
    version_json,
)
from cks_runtime.flow.branches import MergeDone, MergeRefused
from cks_runtime.flow.graphs import in_worker
from cks_runtime.model.diff import graph_diff, object_diff
from cks_runtime.model.errors import InvalidParameter
from cks_runtime.model.explain_diff import explain
from cks_runtime.model.history import FIRST_VERSION, Version
from cks_runtime.model.knowledge import object_from_json
from cks_runtime.model.merge import Resolution
from cks_runtime.model.times import format_ms
from cks_runtime.store.sessions import SessionRow

lines = Toolset("core")

DIFF_BYTES = 24_000
FRONTIER_MAX = 64


class ListSessionsArgs(Args):
    state: Literal["open", "closed", "remote"] | None = None
    limit: Limit = 50
    cursor: Cursor = None


class SessionList(Result):
    sessions: list[dict[str, Any]]
    next_cursor: str | None = None


@lines.tool(read_only=True)
async def list_sessions(ctx: Ctx, args: ListSessionsArgs) -> SessionList:
    """The sessions (lines of work) with their heads, by id; open and closed ones unless state says otherwise."""
    rt = ctx.app.rt
    after = from_cursor("sessions", args.cursor, str) or ""
    if args.state == "remote":
        return SessionList(sessions=[])
    closed = None if args.state is None else args.state == "closed"
    rows = await rt.sessions.page(closed, after, args.limit + 1)
    page = rows[: args.limit]
    sizes = await rt.sessions.sizes([row.root for row in page])
    shown = [_session(row, sizes[row.root]) for row in page]
    count = fitting(shown)
    more = len(rows) > args.limit or count < len(shown)
    return SessionList(
        sessions=shown[:count],
        next_cursor=to_cursor("sessions", page[count - 1].session_id) if more else None,
    )


def _session(row: SessionRow, objects: int) -> dict[str, Any]:
    fork = (
        {"session_id": row.fork_session, "version_id": row.fork_version.hex()} if row.fork_session else None
    )
    return {
        "session_id": row.session_id,
        "title": row.title,
        "state": "closed" if row.closed else "open",
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


@lines.tool(read_only=True)
async def list_versions(ctx: Ctx, args: ListVersionsArgs) -> VersionList:
    """The history of a session, newest first: the head, then every version before its parents."""
    rt = ctx.app.rt
    row = await rt.sessions.get(session_or_default(ctx, args.session_id))
    place = from_cursor("versions", args.cursor, list)
    frontier = [row.head] if place is None else _frontier(place)
    found = await rt.sessions.history(frontier, args.limit)
    sizes = await rt.sessions.sizes([version.root for version in found.versions])
    shown = [
        {**version_json(version), "counts": {"objects": sizes[version.root]}} for version in found.versions
    ]
    count = fitting(shown)
    rest = found.frontier
    if count < len(shown):
        found = await rt.sessions.history(frontier, count)
        rest = found.frontier
    return VersionList(
        session_id=row.session_id,
        versions=shown[:count],
        next_cursor=to_cursor("versions", [key.hex() for key in rest[:FRONTIER_MAX]]) if rest else None,
    )


def _frontier(place: list[Any]) -> list[bytes]:
    try:
        keys = [bytes.fromhex(key) for key in place[:FRONTIER_MAX]]
    except (TypeError, ValueError):
        keys = [b""]
    if any(len(key) != 32 for key in keys):
        raise InvalidParameter(
            "cursor is not one that list_versions gave.",
            "Leave cursor out to start again.",
            argument="cursor",
        )
    return keys


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
    added: dict[str, Any]
    updated: dict[str, Any]
    removed: dict[str, Any]
    objects: list[dict[str, Any]]
    next_cursor: str | None = None


@lines.tool(read_only=True)
async def compare_versions(ctx: Ctx, args: CompareArgs) -> Comparison:
    """What changed between two versions, object by object and field by field.

    Without arguments: what the head changed. For an account in words, or of two diverged lines, use explain_diff.
    """
    rt = ctx.app.rt
    row = await rt.sessions.get(session_or_default(ctx, args.session_id))
    own = await rt.graphs.version(row.head)
    after, other = (own, None) if args.to is None else await rt.sessions.version_or_session(args.to)
    if args.from_ is not None:
        before, _ = await rt.sessions.version_or_session(args.from_)
    elif other is not None and other != row.session_id:
        before = own
    else:
        before = await rt.sessions.parent_of(row.session_id, after)
    left, right = await rt.sessions.graph_of(before), await rt.sessions.graph_of(after)
    diff = await in_worker(lambda: graph_diff(left, right))
    start = from_cursor("compare", args.cursor, str) or ""
    rest = [entry for entry in sorted((*diff.added, *diff.updated, *diff.removed)) if entry[0] > start]
    page = [{"object_id": id, **(object_diff(old, new) or {})} for id, old, new in rest[: args.limit]]
    page = page[: fitting(page, DIFF_BYTES)]
    totals = changed_of(diff)
    return Comparison(
        session_id=row.session_id,
        from_version_id=before.id.hex(),
        to_version_id=after.id.hex(),
        added=totals.added.model_dump(),
        updated=totals.updated.model_dump(),
        removed=totals.removed.model_dump(),
        objects=page,
        next_cursor=to_cursor("compare", page[-1]["object_id"]) if len(page) < len(rest) else None,
    )


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


@lines.tool(read_only=True)
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
        other = await rt.sessions.get(args.other_session_id)
        before, after = own, await rt.graphs.version(other.head)
        bases = await rt.graphs.merge_bases(row.head, other.head)
    else:
        assert args.target_version_id is not None
        before, after = await rt.sessions.version(args.target_version_id), own
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
        count = fitting(entries, room) if entries and room > 0 else 0
        kept[name] = entries[:count]
        room -= sum(len(str(entry)) for entry in kept[name])
    return DiffAccount(
        session_id=session_id,
        from_version_id=before.id.hex(),
        to_version_id=after.id.hex(),
        summary=told["summary"][:8000],
        totals={name: len(entries) for name, entries in parts.items()},
        base_version_id=bases[0].hex() if bases else None,
        base_version_ids=[base.hex() for base in bases] if len(bases) > 1 else None,
        **kept,
    )


class CreateBranchArgs(Args):
    session_id: SessionId = None
    version_id: Annotated[VersionId | None, Field(description="Where to start. Default: the head.")] = None
    title: Annotated[str | None, Field(max_length=512)] = None


class BranchMade(Result):
    session_id: str
    title: str
    version_id: str
    fork: dict[str, Any]


@lines.tool()
async def create_branch(ctx: Ctx, args: CreateBranchArgs) -> BranchMade:
    """Start a new session at a version of another one, to try something; costs nothing however large it is.

    Bring the work back with merge_branch.
    """
    session_id = session_or_default(ctx, args.session_id)
    row = await ctx.app.rt.branches.create(session_id, args.version_id, args.title or "")
    return BranchMade(
        session_id=row.session_id,
        title=row.title,
        version_id=row.head.hex(),
        fork={"session_id": session_id, "version_id": row.fork_version.hex()},
    )


class MergeArgs(Args):
    target_session_id: str
    source_session_id: str
    resolutions: Annotated[
        dict[str, Any] | None,
        Field(
            description=(
                'For each conflict, by object id: "branch_a" (the target\'s side), "branch_b" (the source\'s side), '
                "null (drop the object) or a whole object {identity, structure}."
            )
        ),
    ] = None
    base_version_id: Annotated[
        str | None, Field(description="Refuse with head_moved unless this is the merge base.")
    ] = None
    dry_run: bool = False


class MergeResult(Result):
    merged: bool
    target_session_id: str
    source_session_id: str
    base_version_id: str
    base_version_ids: list[str] | None = None
    version_id: str | None = None
    changed: Changed | None = None
    dropped_relations: list[str] | None = None
    restored: list[str] | None = None
    no_op: bool | None = None
    dry_run: bool | None = None
    conflicts: list[dict[str, Any]] | None = None
    conflicts_total: int | None = None


@lines.tool()
async def merge_branch(ctx: Ctx, args: MergeArgs) -> MergeResult:
    """Merge a session into another: what changed on one side only, or in different fields, merges by itself.

    Clashes come back as conflicts and leave the target untouched; call again with resolutions. dry_run only looks.
    """
    rt = ctx.app.rt
    resolutions = {id: _resolution(ctx, id, value) for id, value in (args.resolutions or {}).items()}
    outcome = await rt.branches.merge(
        args.target_session_id,
        args.source_session_id,
        resolutions=resolutions,
        base_version_id=args.base_version_id,
        dry_run=args.dry_run,
        author=ctx.app.author(ctx, None),
    )
    return merge_result(outcome, args.target_session_id, args.source_session_id, args.dry_run)


def _resolution(ctx: Ctx, object_id: str, value: Any) -> Resolution:
    match value:
        case None | "branch_a" | "branch_b":
            return value
        case {**entries}:
            return object_from_json(entries, ctx.app.rt.config.limits, f"resolutions[{object_id!r}]")
        case _:
            raise InvalidParameter(
                f"resolutions[{object_id!r}] is {str(value)[:80]!r}.",
                'Allowed are "branch_a", "branch_b", null and a whole object.',
                argument="resolutions",
            )


def merge_result(
    outcome: MergeDone | MergeRefused, target: str, source: str, dry_run: bool = False
) -> MergeResult:
    """The answer of every tool that merges."""
    bases = [base.hex() for base in outcome.base_version_ids] or [FIRST_VERSION.id.hex()]
    common: dict[str, Any] = {
        "target_session_id": target,
        "source_session_id": source,
        "base_version_id": bases[0],
        "base_version_ids": bases if len(bases) > 1 else None,
        "dry_run": True if dry_run else None,
    }
    if isinstance(outcome, MergeRefused):
        entries = [conflict.as_json() for conflict in outcome.conflicts]
        return MergeResult(
            merged=False,
            conflicts=entries[: fitting(entries, DIFF_BYTES)],
            conflicts_total=len(entries),
            **common,
        )
    return MergeResult(
        merged=True,
        version_id=outcome.version_id.hex() if outcome.version_id is not None else None,
        changed=changed(outcome.before, outcome.after),
        dropped_relations=list(outcome.dropped_relations[:200]),
        restored=list(outcome.restored[:200]),
        no_op=outcome.no_op,
        **common,
    )
