"""Core tools that change or judge knowledge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from cks_mcp.answers import Result
from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_mcp.tools.common import (
    DIAGNOSTICS_MAX,
    Args,
    Changed,
    Cursor,
    Limit,
    SessionId,
    Text,
    VersionId,
    changed,
    changed_of,
    cut_ids,
    from_cursor,
    page_of_diagnostics,
    session_or_default,
    to_cursor,
)
from cks_runtime.flow.graphs import in_worker
from cks_runtime.model.canon import Json
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.diff import graph_diff
from cks_runtime.model.errors import InvalidKnowledge, InvalidParameter
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.knowledge import parse_knowledge
from cks_runtime.model.validate import check_all, check_change, warnings

core = Toolset("core")

CASCADE_BYTES = 6_000

Extension = Literal["inference", "temporal", "provenance", "contradiction"]
Extensions = Annotated[
    list[Extension] | None, Field(description="Also check WARNINGs of these kinds; ERRORs always are.")
]
Author = Annotated[str | None, Field(description="Default: client name and replica id.", max_length=200)]
Knowledge = Annotated[
    dict[str, Any] | None,
    Field(
        description='A graph: {"version": "1.0", "objects": [{"identity": {"id", "type", "name"}, "structure": {}}]}.'
    ),
]


class EvolveArgs(Args):
    operations: Annotated[
        list[Any] | None,
        Field(
            description=(
                'Applied in order, all or nothing; each {"op": …}: add_object {identity, structure?}, update_object '
                "{object_id, structure_patch, mode: merge|replace} (null deletes a key), rename_object {object_id, "
                "new_name}, remove_object {object_id}, "
                "add_relation {identity, participants, relation_type, structure?}, "
                "remove_relation {relation_id}, record_inference {identity, premises, conclusion, operator: "
                "deductive|inductive|abductive|heuristic, confidence: 0..1, justification?, alternatives_considered?, "
                "supersedes?}, resolve_inference_conflict {conclusion_id, winner_id, reasoning}."
            )
        ),
    ] = None
    knowledge: Knowledge = None
    session_id: SessionId = None
    create: Annotated[bool, Field(description="Make the session if it does not exist.")] = False
    title: Annotated[str | None, Field(max_length=512, description="Of a new session.")] = None
    extensions: Extensions = None
    expected_head: Annotated[
        str | None, Field(description="Refuse with head_moved unless this is the head.")
    ] = None
    message: Text | None = None
    author: Author = None


class Evolved(Result):
    session_id: str
    version_id: str
    changed: Changed
    cascade_removed_relations: list[str]
    cascade_removed_records: list[str]
    diagnostics: list[dict[str, Any]]
    diagnostics_total: int
    no_op: bool


@core.tool()
async def evolve_knowledge(ctx: Ctx, args: EvolveArgs) -> Evolved:
    """Change a session's knowledge by operations, or add or replace whole objects by `knowledge`.

    Use it for every edit. Concurrent edits are retried on the newest head; what changes nothing makes no version.
    To try something without touching the session, create_branch first.
    """
    rt = ctx.app.rt
    session_id = session_or_default(ctx, args.session_id)
    if (args.operations is None) == (args.knowledge is None):
        raise InvalidParameter(
            "Give exactly one of operations and knowledge.",
            "operations edits in steps; knowledge adds or replaces whole objects.",
            argument="operations",
        )
    options: dict[str, Any] = {
        "create": args.create,
        "title": args.title or "",
        "expected_head": args.expected_head,
        "message": args.message or "",
        "author": ctx.app.author(ctx, args.author),
    }
    if args.operations is not None:
        moved = await rt.commits.evolve(session_id, args.operations, **options)
    else:
        given = args.knowledge
        objects = await in_worker(lambda: parse_knowledge(given, rt.config.limits))
        moved = await rt.commits.put(session_id, objects, **options)
    diff = graph_diff(moved.before, moved.after)
    touched = [id for id, _, _ in (*diff.added, *diff.updated, *diff.removed)]
    found = await _warnings(ctx, moved.after, args.extensions, touched) if touched else []
    return Evolved(
        session_id=moved.session_id,
        version_id=moved.version.id.hex(),
        changed=changed_of(diff),
        cascade_removed_relations=cut_ids(moved.cascade_relations[:200], CASCADE_BYTES),
        cascade_removed_records=cut_ids(moved.cascade_records[:200], CASCADE_BYTES),
        diagnostics=page_of_diagnostics([diagnostic.as_json() for diagnostic in found]),
        diagnostics_total=len(found),
        no_op=moved.no_op,
    )


class ValidateArgs(Args):
    session_id: SessionId = None
    knowledge: Knowledge = None
    extensions: Extensions = None
    limit: Limit = DIAGNOSTICS_MAX
    cursor: Cursor = None


class Validated(Result):
    valid: bool
    diagnostics: list[dict[str, Any]]
    diagnostics_total: int
    version_id: str | None = None
    next_cursor: str | None = None


@core.tool(read_only=True)
async def validate_knowledge(ctx: Ctx, args: ValidateArgs) -> Validated:
    """Check a session, or a graph you send, against every rule; writes nothing, ever.

    Use it before evolve_knowledge, or with extensions to see contradictions and stale facts.
    """
    if args.knowledge is not None and args.session_id is not None:
        raise InvalidParameter(
            "Give session_id or knowledge, not both.", "Leave one of them out.", argument="knowledge"
        )
    session_id = session_or_default(ctx, args.session_id) if args.knowledge is None else None
    scope = (session_id, [*(args.extensions or ())])
    skip = from_cursor("diagnostics", args.cursor, int, *scope) or 0
    version_id, found = await _judged(ctx, args)
    page = page_of_diagnostics(found[skip:], args.limit)
    end = skip + len(page)
    return Validated(
        valid=not any(diagnostic["severity"] == "ERROR" for diagnostic in found),
        diagnostics=page,
        diagnostics_total=len(found),
        version_id=version_id,
        next_cursor=to_cursor("diagnostics", end, *scope) if end < len(found) else None,
    )


async def _judged(ctx: Ctx, args: ValidateArgs) -> tuple[str | None, list[Mapping[str, Json]]]:
    """The version that was checked (None: the caller's own graph), and everything found, ERRORs first."""
    version_id, keys = None, ctx.app.rt.keys
    if args.knowledge is not None:
        given, limits = args.knowledge, ctx.app.rt.config.limits
        try:
            objects = await in_worker(lambda: parse_knowledge(given, limits))
        except InvalidKnowledge as error:
            problems = error.details["diagnostics"]
            assert isinstance(problems, list)
            return None, problems
        graph = await in_worker(lambda: EMPTY_GRAPH.with_changes({obj.id: obj for obj in objects}))
        # as if all of it were new, which a record must stand as well
        found = await in_worker(lambda: check_change([], graph, graph.ids(), keys))
    else:
        row, graph = await ctx.app.rt.sessions.head(session_or_default(ctx, args.session_id))
        version_id = row.head.hex()
        found = await in_worker(lambda: check_all(graph, keys))
    found += await _warnings(ctx, graph, args.extensions, None)
    return version_id, [diagnostic.as_json() for diagnostic in found]


async def _warnings(
    ctx: Ctx, graph: Graph, extensions: list[Extension] | None, scope: list[str] | None
) -> list[Diagnostic]:
    if not extensions:
        return []
    rt = ctx.app.rt
    now_ms, ttl_ms = rt.clock(), int(rt.config.provenance_ttl_seconds * 1000)
    return await in_worker(lambda: warnings(graph, extensions, now_ms, ttl_ms, scope))


class RevertArgs(Args):
    session_id: SessionId = None
    version_id: VersionId


class CloseArgs(Args):
    session_id: str
    reopen: bool = False


class MovedTo(Result):
    session_id: str
    version_id: str
    changed: Changed
    no_op: bool
    state: str


@core.tool()
async def revert_version(ctx: Ctx, args: RevertArgs) -> MovedTo:
    """Make a new version whose content is that of an earlier one; the history in between stays.

    Use it to undo. To undo one object only, send it again with evolve_knowledge.
    """
    session_id = session_or_default(ctx, args.session_id)
    moved = await ctx.app.rt.branches.revert(session_id, args.version_id, ctx.app.author(ctx, None))
    return MovedTo(
        session_id=session_id,
        version_id=moved.version.id.hex(),
        changed=changed(moved.before, moved.after),
        no_op=moved.no_op,
        state="closed" if moved.version.closed else "open",
    )


@core.tool(idempotent=True)
async def close_session(ctx: Ctx, args: CloseArgs) -> MovedTo:
    """Close a session, so that it takes no more edits, or open it again with reopen=true. Nothing is deleted."""
    moved = await ctx.app.rt.branches.close(args.session_id, args.reopen, ctx.app.author(ctx, None))
    return MovedTo(
        session_id=args.session_id,
        version_id=moved.version.id.hex(),
        changed=changed(moved.before, moved.after),
        no_op=moved.no_op,
        state="closed" if moved.version.closed else "open",
    )
