"""Core tools that show what a session holds."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cks_mcp.answers import Answer, Result, as_json, fitting, plain, summary
from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_mcp.tools.common import (
    Args,
    Cursor,
    Limit,
    SessionId,
    cut_ids,
    from_cursor,
    page_of,
    session_or_default,
    to_cursor,
    version_json,
    wrong_cursor,
)
from cks_mcp.trimming import trimmed
from cks_runtime.flow.graphs import in_worker
from cks_runtime.flow.remote_lines import line_of
from cks_runtime.flow.search import Hit
from cks_runtime.model.canon import parse_exact
from cks_runtime.model.explain import premise_chain, relations_of, steps_of, validity_of, verification_of
from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import dump_bytes
from cks_runtime.model.subgraph import SEEDS_MAX, subgraph
from cks_runtime.model.validate import warnings
from cks_runtime.store.sessions import SessionRow

reads = Toolset("core")

PART_BYTES = 7_000  # each part of an explained object, so that all of them fit one answer
SUBGRAPH_BYTES = 40_000
CONFLICTS_MAX = 100
TYPES_MAX = 200
IDS_BYTES = 1_000
TEXT_BYTES = 24_000


class ExplainArgs(Args):
    session_id: SessionId = None
    object_id: str | None = None
    limit: Annotated[Limit, Field(description="Relations a page.")] = 50
    cursor: Cursor = None


class Explained(Result):
    """Without `object_id` the first group of fields, with it the second."""

    session_id: str
    state: str
    head: dict[str, Any]
    title: str | None = None
    fork: dict[str, Any] | None = None
    counts: dict[str, Any] | None = None
    freshness: dict[str, Any] | None = None
    open_conflicts: list[dict[str, Any]] | None = None
    object: dict[str, Any] | None = None
    relations: list[dict[str, Any]] | None = None
    relations_total: int | None = None
    next_cursor: str | None = None
    active_steps: list[dict[str, Any]] | None = None
    active_total: int | None = None
    superseded_steps: list[dict[str, Any]] | None = None
    superseded_total: int | None = None
    premise_chain: dict[str, Any] | None = None
    verification: list[dict[str, Any]] | None = None
    validity: dict[str, Any] | None = None
    last_change: dict[str, Any] | None = None


@reads.tool(read_only=True)
async def explain_knowledge(ctx: Ctx, args: ExplainArgs) -> Answer[Explained]:
    """Explain a session (counts by type, head, freshness, open conflicts) or, with object_id, one object: what it
    is, its relations, the reasoning for it down to base facts, its verification and validity.

    Use it to understand before editing; for many objects at once use query_subgraph.
    """
    rt = ctx.app.rt
    row, graph = await rt.sessions.head(session_or_default(ctx, args.session_id))
    head = version_json(await rt.graphs.version(row.head))
    base: dict[str, Any] = {
        "session_id": row.session_id,
        "state": "remote" if line_of(row.session_id) else "closed" if row.closed else "open",
        "head": head,
    }
    if args.object_id is None:
        return Answer(Explained(**base, **await _overview(ctx, row, graph)))
    found = Explained(**base, **await _object(ctx, row, graph, args.object_id, args))
    structured, size = plain(as_json(found))
    # one object asked for by id is not limited, but a large one must not stand in the answer twice
    return Answer(found, text=summary(structured) if size > 24_000 else None, unlimited=True)


async def _overview(ctx: Ctx, row: SessionRow, graph: Graph) -> dict[str, Any]:
    rt = ctx.app.rt
    now_ms, ttl_ms = rt.clock(), int(rt.config.provenance_ttl_seconds * 1000)
    stale = await in_worker(lambda: warnings(graph, ("temporal", "provenance"), now_ms, ttl_ms))
    expired = [found.location for found in stale if "valid_until" in found.extra]
    records = await rt.conflicts.of_session(row.session_id, CONFLICTS_MAX)
    conflicts = [
        {
            "record_id": record.record_id,
            "kind": record.kind,
            "object_ids": cut_ids(record.object_ids, IDS_BYTES),
            "object_count": len(record.object_ids),
        }
        for record in records
    ]
    types = sorted(graph.types().items(), key=lambda entry: (-entry[1], entry[0]))
    shown_types = types[:TYPES_MAX][: fitting([list(entry) for entry in types[:TYPES_MAX]], PART_BYTES)]
    fork = (
        {"session_id": row.fork_session, "version_id": row.fork_version.hex()} if row.fork_session else None
    )
    return {
        "title": row.title,
        "fork": fork,
        "counts": {
            "objects": len(graph),
            "by_type": dict(shown_types),
            "types": len(types),
            "damaged": len(graph.damaged),
            "open_conflicts": sum((await rt.conflicts.count_open(row.session_id)).values()),
        },
        "freshness": {
            "expired": len(expired),
            "expired_ids": cut_ids(expired[:20], IDS_BYTES),
            "verifications_expired": len(stale) - len(expired),
        },
        "open_conflicts": page_of(conflicts, PART_BYTES),
    }


async def _object(
    ctx: Ctx, row: SessionRow, graph: Graph, object_id: str, args: ExplainArgs
) -> dict[str, Any]:
    rt = ctx.app.rt
    obj = graph[object_id]
    now_ms, ttl_ms = rt.clock(), int(rt.config.provenance_ttl_seconds * 1000)
    after = from_cursor("relations", args.cursor, str, row.session_id, object_id) or ""
    relations = await in_worker(lambda: relations_of(graph, object_id))
    rest = [relation for relation in relations if str(relation["relation_id"]) > after]
    page = page_of(rest[: args.limit], PART_BYTES)
    active, superseded = await in_worker(lambda: steps_of(graph, object_id))
    chain = await in_worker(lambda: premise_chain(graph, object_id))
    steps = list(chain.steps)
    shown = page_of(steps, PART_BYTES)
    facts = cut_ids(chain.base_facts, PART_BYTES // 2)
    changed = await rt.sessions.last_change(row, object_id)
    return {
        "object": obj.as_json(),
        "relations": page,
        "relations_total": len(relations),
        "next_cursor": to_cursor("relations", rest[len(page) - 1]["relation_id"], row.session_id, object_id)
        if len(page) < len(rest)
        else None,
        "active_steps": page_of(active, PART_BYTES),
        "active_total": len(active),
        "superseded_steps": page_of(superseded, PART_BYTES),
        "superseded_total": len(superseded),
        "premise_chain": {
            "steps": shown,
            "base_facts": facts,
            "truncated": chain.truncated or len(shown) < len(steps) or len(facts) < len(chain.base_facts),
        },
        "verification": page_of(verification_of(graph, obj, now_ms, ttl_ms), PART_BYTES),
        "validity": validity_of(obj, now_ms),
        "last_change": version_json(changed) if changed is not None else None,
    }


class SubgraphArgs(Args):
    session_id: SessionId = None
    seed_ids: Annotated[list[str], Field(min_length=1, max_length=SEEDS_MAX)]
    depth: Annotated[int, Field(ge=0, le=10)] = 1
    relation_types: Annotated[list[str] | None, Field(max_length=100)] = None
    max_objects: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Cursor = None


class SubgraphResult(Result):
    session_id: str
    version_id: str
    objects: list[dict[str, Any]]
    relations: list[dict[str, Any]]
    truncated: bool
    next_seeds: list[str]
    next_cursor: str | None = None


@reads.tool(read_only=True)
async def query_subgraph(ctx: Ctx, args: SubgraphArgs) -> SubgraphResult:
    """Objects and relations around some objects, breadth first. Use it when you know where to start.

    When truncated, next_cursor gives the rest, or go on from next_seeds. To find a start use search_knowledge.
    """
    rt = ctx.app.rt
    row, graph = await rt.sessions.head(session_or_default(ctx, args.session_id))
    # a page continues the walk of the first one, so it looks at the version that one saw
    scope = (row.session_id, [*args.seed_ids], args.depth, args.relation_types and [*args.relation_types])
    place = from_cursor("subgraph", args.cursor, list, *scope)
    skip, version = 0, await rt.graphs.version(row.head)
    if place is not None:
        skip, version_id = _subgraph_place(place, args.cursor)
        version = await rt.sessions.version(version_id, "cursor")
        graph = await rt.sessions.graph_of(version)
    found = await in_worker(
        lambda: subgraph(
            graph, args.seed_ids, args.depth, args.relation_types, args.max_objects, SUBGRAPH_BYTES, skip
        )
    )
    return SubgraphResult(
        session_id=row.session_id,
        version_id=version.id.hex(),
        # a single object may be longer than an answer; explain_knowledge has it whole
        objects=[trimmed(obj.as_json(), SUBGRAPH_BYTES) for obj in found.objects],
        relations=[trimmed(obj.as_json(), SUBGRAPH_BYTES) for obj in found.relations],
        truncated=found.next_skip is not None,
        next_seeds=cut_ids(found.next_seeds, PART_BYTES),
        next_cursor=None
        if found.next_skip is None
        else to_cursor("subgraph", [found.next_skip, version.id.hex()], *scope),
    )


def _subgraph_place(place: list[Any], cursor: str | None) -> tuple[int, str]:
    match place:
        case [int(skip), str(version_id)] if 0 <= skip < 1 << 62:
            return skip, version_id
        case _:
            raise wrong_cursor(cursor or "")


class SearchArgs(Args):
    session_id: SessionId = None
    query: Annotated[str, Field(min_length=1, max_length=1000)]
    limit: Limit = 20
    cursor: Cursor = None


class SearchResult(Result):
    session_id: str
    hits: list[dict[str, Any]]
    matched: str
    next_cursor: str | None = None


@reads.tool(read_only=True)
async def search_knowledge(ctx: Ctx, args: SearchArgs) -> SearchResult:
    """Full-text search in a session, best hits first; any script. Names, ids, types and every text are searched.

    Hits have all words of the query (matched: all); where no object has, any of them (matched: any).
    """
    session_id = session_or_default(ctx, args.session_id)
    scope = (session_id, args.query)
    skip, every = _search_place(from_cursor("search", args.cursor, list, *scope), args.cursor)
    search = ctx.app.rt.search
    found = await search.find(session_id, args.query, args.limit, skip, every)
    shown = [_hit(hit) for hit in found.hits]
    if (count := fitting(shown)) < len(shown):
        # fewer fit than were asked for: look again, so that the next page begins where this one really ends
        found = await search.find(session_id, args.query, count, skip, found.every)
        shown = [_hit(hit) for hit in found.hits]
    return SearchResult(
        session_id=session_id,
        hits=shown,
        matched="all" if found.every else "any",
        next_cursor=None
        if found.next_skip is None
        else to_cursor("search", [found.next_skip, found.every], *scope),
    )


def _hit(hit: Hit) -> dict[str, Any]:
    return {
        "object_id": hit.obj.id,
        "type": hit.obj.type,
        "name": hit.obj.name,
        "score": hit.score,
        "snippet": hit.snippet,
    }


def _search_place(place: list[Any] | None, cursor: str | None) -> tuple[int, bool]:
    match place:
        case None:
            return 0, True
        case [int(skip), bool(every)] if 0 <= skip < 1 << 62:
            return skip, every
        case _:
            raise wrong_cursor(cursor or "")


class ExportArgs(Args):
    session_id: SessionId = None


class Exported(Result):
    """The knowledge format: canonical, so equal knowledge gives equal bytes."""

    objects: list[dict[str, Any]]
    version: str


@reads.tool(read_only=True)
async def export_session(ctx: Ctx, args: ExportArgs) -> Answer[Exported]:
    """The whole knowledge of a session in the format that evolve_knowledge takes, objects sorted by id.

    Use it for copies and other programs; it is not limited in size, so to look around use query_subgraph.
    """
    row, graph = await ctx.app.rt.sessions.head(session_or_default(ctx, args.session_id))
    # through the canonical bytes, so that an object just written and one read back stand in one order of keys
    data = await in_worker(lambda: dump_bytes(graph.objects()))
    dumped: Any = await in_worker(lambda: parse_exact(data))
    found = Exported.model_construct(None, objects=dumped["objects"], version=dumped["version"])
    text = f"{len(graph)} objects of session {row.session_id!r} at version {row.head.hex()} in structuredContent."
    return Answer(found, text=text if len(data) > TEXT_BYTES else None, unlimited=True)
