"""Tools that show what clashes: the two inboxes, and the state of the whole runtime."""

from __future__ import annotations

import platform
import sqlite3
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any, Literal

from pydantic import Field

from cks_mcp.answers import Result, fitting
from cks_mcp.arguments import Args
from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_mcp.tools.common import Cursor, Limit, cut_ids, from_cursor, page_of_diagnostics, to_cursor
from cks_runtime.model.knowledge import check_session_id
from cks_runtime.model.times import format_ms
from cks_runtime.store.agents import list_agents
from cks_runtime.store.conflicts import RecordRow

conflicts = Toolset("conflicts")

RECORD_IDS_BYTES = 2_000


class ListConflictsArgs(Args):
    session_id: Annotated[str | None, Field(description="Default: all sessions.")] = None
    peek: Annotated[bool, Field(description="Only look: take nothing off the queue.")] = False
    state: Annotated[
        Literal["queued", "open", "closed"],
        Field(description="open and closed read records and never drain."),
    ] = "queued"
    limit: Limit = 50
    cursor: Cursor = None


class GossipConflicts(Result):
    count: int
    conflicts: list[dict[str, Any]]
    remaining: int
    dropped: int
    enabled: bool
    next_cursor: str | None = None


class InferenceConflicts(Result):
    count: int
    conflicts: list[dict[str, Any]]
    remaining: int
    dropped: int
    enabled: bool
    last_sweep_at: str | None
    next_cursor: str | None = None


@conflicts.tool()
async def list_gossip_conflicts(ctx: Ctx, args: ListConflictsArgs) -> GossipConflicts:
    """Takes notices of diverged replicas off the queue, oldest first; with peek=true it only looks.

    Each notice goes to one caller; the conflict stays open until it is resolved and can be read with state=open.
    """
    page = await _take(ctx, "gossip", args)
    return GossipConflicts(
        dropped=ctx.app.rt.inboxes["gossip"].dropped, enabled=bool(ctx.app.gossip().get("enabled")), **page
    )


@conflicts.tool()
async def list_inference_conflicts(ctx: Ctx, args: ListConflictsArgs) -> InferenceConflicts:
    """Takes notices of disagreeing or outdated reasoning off the queue, oldest first; with peek=true it only looks.

    Each notice goes to one caller; the conflict stays open until it is resolved and can be read with state=open.
    """
    page = await _take(ctx, "inference", args)
    sweeper = ctx.app.sweepers().get("inference", {})
    last = sweeper.get("last_run_ms")
    return InferenceConflicts(
        dropped=ctx.app.rt.inboxes["inference"].dropped,
        enabled=bool(sweeper.get("enabled")),
        last_sweep_at=None if last is None else format_ms(last),
        **page,
    )


async def _take(ctx: Ctx, kind: str, args: ListConflictsArgs) -> dict[str, Any]:
    """The common part of both answers. What does not fit one answer stays on the queue."""
    session_id = None if args.session_id is None else check_session_id(args.session_id)
    records, inbox = ctx.app.rt.conflicts, ctx.app.rt.inboxes[kind]
    scope = (args.session_id, args.state)
    after = from_cursor(f"conflicts-{kind}", args.cursor, int, *scope) or 0
    while True:
        page = await records.page(kind, args.state, session_id, after, args.limit)
        page = page[: fitting([record_json(record) for record in page])]
        last = page[-1].notice_no if page else after
        if args.state != "queued" or args.peek or not page:
            remaining = await records.count(kind, args.state, session_id, last)
            break
        # exactly what was measured is taken; where other callers were faster with all of it, look again
        taken = await inbox.take(page, session_id, after)
        if taken.records:
            page, remaining = list(taken.records), taken.remaining
            break
    return {
        "count": len(page),
        "conflicts": [record_json(record) for record in page],
        "remaining": remaining,
        "next_cursor": to_cursor(f"conflicts-{kind}", last, *scope) if remaining and page else None,
    }


def record_json(record: RecordRow) -> dict[str, Any]:
    """A record as the tools and resources show it; `detected_at` is in seconds since the epoch.

    Of one that is about very many objects, what is shown is bounded, and `…_total` says how many there are;
    validate_knowledge and explain_knowledge page through all of it.
    """
    shown: dict[str, Any] = {
        "record_id": record.record_id,
        "kind": record.kind,
        "detected_at": record.detected_at_ms / 1000,
        "session_id": record.session_id,
        "version_id": record.version_id,
        "occurrence": record.occurrence,
        "state": record.state,
        **_bounded(record),
    }
    if record.state == "closed":
        shown["closed_how"] = record.closed_how
        shown["closed_at"] = None if record.closed_at_ms is None else format_ms(record.closed_at_ms)
    return shown


def _bounded(record: RecordRow) -> dict[str, Any]:
    body: dict[str, Any] = {}
    for key, value in record.body.items():
        match value:
            case [dict(), *_]:
                body[key] = page_of_diagnostics([entry for entry in value if isinstance(entry, dict)])
            case list():
                body[key] = cut_ids(value, RECORD_IDS_BYTES)
            case _:
                body[key] = value
                continue
        if len(body[key]) < len(value):
            body[f"{key}_total"] = len(value)
    return body


class StatusArgs(Args):
    pass


class Status(Result):
    replica_id: str
    instance_id: str
    versions: dict[str, str]
    store: dict[str, Any]
    sweepers: dict[str, Any]
    gossip: dict[str, Any]
    queues: dict[str, Any]
    journal: dict[str, Any]
    caches: dict[str, Any]
    agents: list[dict[str, Any]]
    bus: list[dict[str, Any]]


@conflicts.tool(read_only=True)
async def runtime_status(ctx: Ctx, args: StatusArgs) -> Status:
    """How this server and its database are doing: sweepers, gossip, queues, store sizes, caches.

    Use it when something seems stuck; for the conflicts themselves use the list tools.
    """
    rt = ctx.app.rt
    oldest, newest = await rt.journal.bounds()
    return Status(
        replica_id=rt.replica_id,
        instance_id=rt.instance_id,
        versions={
            "cks": version("cks"),
            "mcp": version("mcp"),
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
        },
        store={
            "kind": rt.store.dialect,
            "location": rt.store.location,
            "outbox": rt.store.has_outbox,
            "bytes": await rt.store.sizes(),
        },
        sweepers={name: _timed(state) for name, state in ctx.app.sweepers().items()},
        gossip=dict(ctx.app.gossip()),
        queues=await _queues(ctx),
        journal={"oldest": oldest, "newest": newest, "published": rt.journal.published},
        caches=rt.graphs.stats(),
        agents=await _agents(ctx),
        bus=[asdict(entry) for entry in rt.bus.stats()],
    )


def _timed(state: Any) -> dict[str, Any]:
    shown = {key: value for key, value in state.items() if not key.endswith("_ms")}
    for key, value in state.items():
        if key.endswith("_ms"):
            shown[key.removesuffix("_ms") + "_at"] = None if value is None else format_ms(value)
    return shown


async def _agents(ctx: Ctx) -> list[dict[str, Any]]:
    """The worker processes of this database; `alive` is false where beats stayed out."""
    rt = ctx.app.rt
    async with rt.store.reader() as reader:
        rows = await list_agents(reader)
    now_ms = rt.clock()
    return [
        {
            "name": row.name,
            "owner": row.owner,
            "alive": row.is_alive(now_ms),
            "started_at": format_ms(row.started_at_ms),
            "beat_at": format_ms(row.beat_at_ms),
            **row.body,
        }
        for row in rows
    ]


async def _queues(ctx: Ctx) -> dict[str, Any]:
    rt = ctx.app.rt
    queues: dict[str, Any] = {"open_conflicts": await rt.conflicts.count_open()}
    for name, inbox in rt.inboxes.items():
        depth, oldest_ms = await inbox.depth()
        queues[name] = {
            "depth": depth,
            "oldest_at": None if oldest_ms is None else format_ms(oldest_ms),
            "dropped": inbox.dropped,
        }
    if rt.store.has_outbox:
        queues["outbox"] = [
            {"task_type": kind, "status": status, "count": count, "oldest_at": format_ms(oldest)}
            for kind, status, count, oldest in await rt.outbox.depths()
        ]
    return queues
