"""Resources of real servers and the updates about them: both generations of the protocol, own and other processes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import ResourceUpdatedNotification
from serving import PATIENCE_S, Agent, add, infer, serving, settle, update

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

Hear = Callable[[str], Awaitable[None]]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Reader(Agent):
    """An agent that can wait for updates of resources."""

    def __init__(self, agent: Agent, legacy: bool) -> None:
        super().__init__(agent.client)
        self.legacy = legacy
        self.heard: list[str] = []
        self.news = anyio.Event()

    def note(self, uri: str) -> None:
        self.heard.append(uri)
        self.news.set()

    @asynccontextmanager
    async def watching(self, *uris: str) -> AsyncIterator[Hear]:
        """Gives what waits until an update of a resource has come since the last wait."""
        self.heard.clear()
        if self.legacy:
            for uri in uris:
                await self.client.subscribe_resource(uri)
            yield self._hear
            for uri in uris:
                await self.client.unsubscribe_resource(uri)
            return
        async with (
            self.client.listen(resource_subscriptions=[*uris]) as events,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._listen, events)
            yield self._hear
            tasks.cancel_scope.cancel()

    async def _listen(self, events: Any) -> None:
        async for event in events:
            assert isinstance(event, ResourceUpdated)
            self.note(str(event.uri))

    async def _hear(self, uri: str) -> None:
        with anyio.fail_after(PATIENCE_S):
            while uri not in self.heard:
                self.news = anyio.Event()
                await self.news.wait()
        self.heard.remove(uri)


@pytest.fixture(scope="module", params=["auto", "legacy"])
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Reader, Agent]]:
    """A reader of either generation, and a writer in another process on the same database."""
    db_path = tmp_path_factory.mktemp("resources") / "cks.db"
    readers: list[Reader] = []

    async def keep(message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification) and readers:
            readers[0].note(str(message.params.uri))

    legacy = request.param == "legacy"
    options = {"mode": "legacy", "message_handler": keep} if legacy else {}
    async with serving(db_path, **options) as agent, serving(db_path) as writer:
        readers.append(Reader(agent, legacy))
        yield readers[0], writer


async def test_a_session_tells_of_every_move_in_any_process(pair: tuple[Reader, Agent]) -> None:
    reader, writer = pair
    name = await writer.session(add("a"), title="Seen")
    uri = f"cks://sessions/{name}"
    async with reader.watching(uri) as hear:
        for agent in (writer, reader):
            moved = await agent.evolve(name, update("a", by=id(agent) % 1000))
            await hear(uri)
            shown = await reader.resource(uri)
            assert shown["head"]["version_id"] == moved["version_id"]
        await writer.ok("close_session", session_id=name)
        await hear(uri)
        shown = await reader.resource(uri)
    assert (shown["session_id"], shown["title"], shown["state"], shown["objects"]) == (
        name,
        "Seen",
        "closed",
        1,
    )
    assert shown["open_conflicts"] == []


async def test_disagreement_reaches_the_other_process_and_reading_never_drains(
    pair: tuple[Reader, Agent],
) -> None:
    reader, writer = pair
    uri = "cks://conflicts/inference"
    async with reader.watching(uri) as hear:
        steps = (infer("i", ["fact"], "claim", 0.1), infer("j", ["fact"], "claim", 0.2))
        name = await writer.session(add("fact"), add("claim"), *steps)
        await hear(uri)
        for _ in range(3):
            shown = await reader.resource(uri)
            (record,) = [r for r in shown["conflicts"] if r["session_id"] == name]
            assert shown["count"] == len(shown["conflicts"]) <= shown["total"]
        session = await reader.resource(f"cks://sessions/{name}")
        assert session["open_conflicts"] == [{"record_id": record["record_id"], "kind": "inference"}]
        taken = await reader.ok("list_inference_conflicts", session_id=name)
        assert [r["record_id"] for r in taken["conflicts"]] == [record["record_id"]]
        assert name in [r["session_id"] for r in (await reader.resource(uri))["conflicts"]]
        await writer.evolve(name, settle("claim", "j"))
        await hear(uri)
        shown = await reader.resource(uri)
        assert name not in [r["session_id"] for r in shown["conflicts"]]


async def test_a_fact_falls_due_while_nobody_edits(pair: tuple[Reader, Agent]) -> None:
    reader, writer = pair
    uri = "cks://conflicts/temporal"
    async with reader.watching(uri) as hear:
        due = datetime.now(UTC) + timedelta(seconds=1)
        date = due.isoformat(timespec="milliseconds")
        name = await writer.session(add("offer", valid_until=date))
        assert name not in [r["session_id"] for r in (await reader.resource(uri))["conflicts"]]
        await hear(uri)
        (record,) = [r for r in (await reader.resource(uri))["conflicts"] if r["session_id"] == name]
        assert due.timestamp() <= record["detected_at"] <= time.time()
        (diagnostic,) = record["diagnostics"]
        assert (diagnostic["location"], diagnostic["valid_until"]) == ("offer", date)
        explained = await writer.ok("explain_knowledge", session_id=name)
        assert [c["kind"] for c in explained["open_conflicts"]] == ["temporal"]
        assert explained["freshness"]["expired_ids"] == ["offer"]
        await writer.evolve(name, update("offer", valid_until=None))
        await hear(uri)
        assert name not in [r["session_id"] for r in (await reader.resource(uri))["conflicts"]]


async def test_documents_tell_of_new_versions(pair: tuple[Reader, Agent]) -> None:
    reader, writer = pair
    uri = "doc:///team/plan.md"
    async with reader.watching(uri) as hear:
        for version in range(2):
            await writer.client.call_tool(
                "mark_publish", {"path": "/team/plan.md", "body": f"{version}\n", "expected_version": version}
            )
            await hear(uri)
    await writer.client.call_tool("mark_archive", {"path": "/team/plan.md"})


async def test_what_is_not_there_is_an_error_with_a_code(pair: tuple[Reader, Agent]) -> None:
    reader, _ = pair
    for uri, codes in (
        ("cks://sessions/nobody", {"session_not_found"}),
        ("cks://sessions/", {"object_not_found", "invalid_parameter"}),
        ("cks://sessions/a%20b", {"invalid_parameter"}),
        ("cks://sessions/..%2f..", {"invalid_parameter", "object_not_found"}),
        ("cks://sessions/a/b", {"object_not_found"}),
        ("cks://conflicts/everything", {"object_not_found"}),
        ("cks://", {"object_not_found"}),
        ("file:///etc/passwd", {"object_not_found"}),
    ):
        assert (await reader.resource_error(uri))["code"] in codes, uri
    for kind in ("gossip", "inference", "temporal", "provenance"):
        assert set(await reader.resource(f"cks://conflicts/{kind}")) >= {"count", "total", "conflicts"}
