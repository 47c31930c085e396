"""What can be added from outside, each shown end to end: a sweeper with a kind of its own, a store, a tool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
from conftest import OpenRuntime
from making import evolve, patch, thing
from mcp import Client

from cks_mcp.answers import Result
from cks_mcp.arguments import Args
from cks_mcp.calls import ToolContext, Toolset
from cks_mcp.offer import offer
from cks_mcp.server import build_server
from cks_mcp.services import Services
from cks_mcp.subscriptions import ResourceUpdates
from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.conflicts import ConflictKind, raised
from cks_runtime.model.claims import Finding
from cks_runtime.model.events import ConflictRaised
from cks_runtime.model.graph import Graph
from cks_runtime.runtime import Runtime
from cks_runtime.store.open import open_store
from cks_runtime.store.ports import LeaseClock, Reader, Row, Store, Unit
from sweepers import StalenessSweeper, SweeperTeam
from sweepers.base import Changes

# ---- a sweeper, its kind of conflict and its event


class OwnerMissing(ConflictRaised):
    """Something has no owner."""

    kind: Literal["OwnerMissing"] = "OwnerMissing"
    object_id: str


class OwnerSweeper(StalenessSweeper):
    """Services without an owner."""

    name = "owner"
    kind = "owner"

    def anchors(self, changed: Changes, after: Graph) -> set[str]:
        return {id for id, _, _ in changed}

    def findings(self, graph: Graph, anchors: Collection[str], now_ms: int) -> list[Finding]:
        objects = (graph.readable(id) for id in anchors)
        return [
            Finding(
                "owner", obj.id, [obj.id], {"code": "NO-OWNER", "location": obj.id, "message": ""}, (obj.id,)
            )
            for obj in objects
            if obj is not None and not obj.structure.get("owner")
        ]


OWNER = ConflictKind("owner", "owner_conflict", raised(OwnerMissing))


async def test_a_sweeper_with_a_kind_of_conflict_of_its_own(open_rt: OpenRuntime) -> None:
    async with open_rt(conflict_kinds=[OWNER]) as rt, rt.bus.subscribe(OwnerMissing) as events:
        team = SweeperTeam.standard(rt, further=[OwnerSweeper(rt, interval_s=60)])
        team.start()
        await evolve(rt, "s", thing("checkout"), thing("search", owner="ann"))
        with anyio.fail_after(20):
            event = await events.receive()
        assert isinstance(event, OwnerMissing) and event.object_id == "checkout"
        assert [event] == [told async for told in rt.journal.replay(types=[OwnerMissing])]
        task = await rt.outbox.claim("tester", ["owner_conflict"])
        assert task is not None and task.session_id == "s"
        assert team.status()["owner"].enabled
        await evolve(rt, "s", patch("checkout", owner="ben"))
        await team.run_now("owner")
        assert await rt.conflicts.page("owner", "open") == []
        (closed,) = await rt.conflicts.page("owner", "closed")
        assert (closed.record_id, closed.closed_how) == (event.record_id, "cause_gone")
        team.stop()


# ---- a store


class TracedStore:
    """A body around another one that keeps what was written, as a replica or an audit log would."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.dialect, self.has_outbox, self.location = inner.dialect, inner.has_outbox, inner.location
        self.written: list[str] = []

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[Unit]:
        async with self._inner.unit() as unit:
            yield TracedUnit(unit, self.written)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[Reader]:
        async with self._inner.reader() as reader:
            yield reader

    async def once(self, sql: str, *params: object) -> list[Row]:
        self.written.append(sql)
        return await self._inner.once(sql, *params)

    async def lease_clock(self) -> LeaseClock:
        return await self._inner.lease_clock()

    async def sizes(self) -> dict[str, int]:
        return await self._inner.sizes()

    async def check(self) -> list[str]:
        return await self._inner.check()

    async def close(self) -> None:
        await self._inner.close()


class TracedUnit:
    """A unit whose statements are kept."""

    def __init__(self, inner: Unit, written: list[str]) -> None:
        self._inner = inner
        self._written = written
        self.dialect = inner.dialect

    async def fetch(self, sql: str, *params: object) -> list[Row]:
        self._written.append(sql)
        return await self._inner.fetch(sql, *params)

    async def execute(self, sql: str, *params: object) -> None:
        await self.fetch(sql, *params)

    async def execute_many(self, sql: str, rows: Any) -> None:
        self._written.append(sql)
        await self._inner.execute_many(sql, rows)


async def traced(config: RuntimeConfig) -> Store:
    return TracedStore(await open_store(config.db_path, config.sqlite_synchronous))


async def test_a_store_of_ones_own(open_rt: OpenRuntime) -> None:
    async with open_rt(opener=traced) as rt:
        assert isinstance(rt.store, TracedStore)
        rt.store.written.clear()
        moved = await evolve(rt, "s", thing("a"))
        assert [sql.split()[2] for sql in rt.store.written if sql.startswith("INSERT")] == [
            "blobs",
            "versions",
            "due",
            "journal",
            "sessions",
        ]
    async with open_rt() as rt:
        assert (await rt.sessions.get("s")).head == moved.version.id


# ---- a tool

counting = Toolset("counting")


class CountArgs(Args):
    session_id: str
    type: str = "Thing"


class Count(Result):
    count: int


@counting.tool(read_only=True)
async def count_objects(ctx: ToolContext[Services], args: CountArgs) -> Count:
    """Count the objects of one type in a session."""
    _, graph = await ctx.app.rt.sessions.head(args.session_id)
    return Count(count=len(graph.of_type(args.type)))


async def test_a_tool_beside_the_servers_own(open_rt: OpenRuntime) -> None:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[Services]:
        async with open_rt() as rt:
            yield Services(rt)

    server = build_server(
        name="own",
        version="1",
        instructions="",
        offer=offer(["core"], 5_000_000, further=[counting]),
        updates=ResourceUpdates(),
        lifespan=lifespan,
    )
    operations = [thing("a"), thing("b")]
    async with Client(server) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert {"count_objects", "evolve_knowledge"} <= listed
        made = await client.call_tool(
            "evolve_knowledge", {"session_id": "s", "operations": operations, "create": True}
        )
        assert not made.is_error
        counted = await client.call_tool("count_objects", {"session_id": "s"})
        assert counted.structured_content == {"count": 2}
        refused = await client.call_tool("count_objects", {"session_id": "s", "kind": "Thing"})
        assert refused.is_error and refused.structured_content is not None
        assert refused.structured_content["code"] == "invalid_parameter"
        assert "kind" in refused.structured_content["message"]


async def test_a_runtime_is_all_that_a_further_tool_needs(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a"))
    found = await count_objects(
        ToolContext(app=Services(rt), client_name="x", request_id=1), CountArgs(session_id="s")
    )
    assert found == Count(count=1)
