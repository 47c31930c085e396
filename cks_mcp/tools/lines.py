"""Core tools about lines of work: branches and merges."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cks_mcp.answers import Result
from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_mcp.tools.common import (
    Args,
    Changed,
    SessionId,
    VersionId,
    changed,
    cut_ids,
    page_of,
    session_or_default,
)
from cks_runtime.flow.branches import MergeDone, MergeRefused
from cks_runtime.flow.remote_lines import check_line_id
from cks_runtime.model.errors import InvalidParameter
from cks_runtime.model.history import FIRST_VERSION
from cks_runtime.model.knowledge import check_session_id, object_from_json
from cks_runtime.model.merge import Resolution

lines = Toolset("core")

DIFF_BYTES = 24_000
IDS_BYTES = 6_000


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
        fork={"session_id": row.fork_session, "version_id": row.fork_version.hex()},
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
    conflict_ids: list[str] | None = None


@lines.tool()
async def merge_branch(ctx: Ctx, args: MergeArgs) -> MergeResult:
    """Merge a session into another: what changed on one side only, or in different fields, merges by itself.

    Clashes come back as conflicts and leave the target untouched; call again with resolutions. dry_run only looks.
    """
    rt = ctx.app.rt
    check_session_id(args.target_session_id, "target_session_id")
    check_line_id(args.source_session_id, "source_session_id")
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
        entries = page_of([conflict.as_json() for conflict in outcome.conflicts], DIFF_BYTES)
        ids = [conflict.object_id for conflict in outcome.conflicts]
        return MergeResult(
            merged=False,
            conflicts=entries,
            conflicts_total=len(ids),
            # all that have to be answered, where the entries of some did not fit
            conflict_ids=cut_ids(ids, IDS_BYTES) if len(entries) < len(ids) else None,
            **common,
        )
    return MergeResult(
        merged=True,
        version_id=outcome.version_id.hex() if outcome.version_id is not None else None,
        changed=changed(outcome.before, outcome.after),
        dropped_relations=cut_ids(outcome.dropped_relations[:200], IDS_BYTES),
        restored=cut_ids(outcome.restored[:200], IDS_BYTES),
        no_op=outcome.no_op,
        **common,
    )
