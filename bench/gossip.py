"""What does gossip cost: an idle round, a small change in a large graph, and a fresh replica, all over real HTTP?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc

from bench.report import line
from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.gossip import GossipConfig
from cks_runtime.model.errors import SessionNotFound
from cks_runtime.net.network import HttpNetwork
from cks_runtime.runtime import Runtime

SECRET = b"a secret for benchmarks, 32 bytes and more"
INTERVAL_S = 0.2
SESSIONS, OBJECTS, LARGE = 100, 100, 5_000


class Wire:
    """A port that passes everything on to another one and counts the bytes, headers and all."""

    def __init__(self) -> None:
        self.bytes = 0
        self.port = 0
        self.target = 0

    async def serve(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        task_status.started()
        await listener.serve(self._pass_on)

    async def _pass_on(self, near: anyio.abc.SocketStream) -> None:
        far = await anyio.connect_tcp("127.0.0.1", self.target)
        async with near, far, anyio.create_task_group() as tasks:
            tasks.start_soon(self._copy, near, far)
            tasks.start_soon(self._copy, far, near)

    async def _copy(self, source: anyio.abc.SocketStream, target: anyio.abc.SocketStream) -> None:
        try:
            async for data in source:
                self.bytes += len(data)
                await target.send(data)
            await target.send_eof()
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass


def add(number: int, **structure: Any) -> dict[str, Any]:
    identity = {"id": f"o{number}", "type": "Thing", "name": f"o{number}"}
    return {"op": "add_object", "identity": identity, "structure": structure}


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    while True:
        if await reached():
            return
        await anyio.sleep(0.01)


@asynccontextmanager
async def replica(folder: str, name: str) -> AsyncIterator[Runtime]:
    config = RuntimeConfig(db_path=f"{folder}/{name}.db", record_secret=SECRET)
    async with Runtime.open(config) as rt:
        yield rt


async def write_and_read(a: Runtime, folder: str) -> float:
    """Seconds to write and to read the same sessions locally."""
    began = time.perf_counter()
    for number in range(SESSIONS):
        objects = [add(n, x=n, session=number) for n in range(OBJECTS)]
        await a.commits.evolve(f"s{number}", objects, create=True)
    async with replica(folder, "a") as reader:
        for number in range(SESSIONS):
            await reader.sessions.head(f"s{number}")
    return time.perf_counter() - began


def same_head(a: Runtime, b: Runtime, session_id: str) -> Callable[[], Awaitable[bool]]:
    async def reached() -> bool:
        try:
            return (await a.sessions.get(session_id)).head == (await b.sessions.get(session_id)).head
        except SessionNotFound:
            return False

    return reached


async def measure(folder: str, wire: Wire) -> None:
    async with replica(folder, "a") as a, replica(folder, "b") as b:
        local_s = await write_and_read(a, folder)
        async with (
            HttpNetwork(SECRET, a.replica_id, "127.0.0.1", 0) as ours,
            HttpNetwork(SECRET, b.replica_id, "127.0.0.1", 0) as theirs,
        ):
            answering = a.gossip(ours, GossipConfig((), INTERVAL_S))
            a.run([answering.run])

            async def listens() -> bool:
                return answering.status()["address"] is not None

            await until(listens)
            wire.target = int(answering.status()["address"].rpartition(":")[2])
            dialling = b.gossip(theirs, GossipConfig((f"http://127.0.0.1:{wire.port}",), INTERVAL_S))
            began = time.perf_counter()
            b.run([dialling.run])

            async def complete() -> bool:
                return len(await b.sessions.page(None, "", SESSIONS + 1)) == SESSIONS

            await until(complete)
            rate = local_s / (time.perf_counter() - began)
            line(
                "fresh replica: rate of 100 sessions, local writing and reading = 1",
                rate,
                ">= 0.33",
                rate >= 1 / 3,
            )
            idle = await idle_round(dialling, wire)
            line("idle round of two equal replicas, bytes with headers", idle, "< 1024", idle < 1024)
            change = await small_change(a, b, wire)
            line("one changed object of 5,000, KB with headers", change / 1024, "< 64", change < 65_536)
            answering.stop()
            dialling.stop()


async def idle_round(dialling: Any, wire: Wire) -> float:
    """Bytes of a round when nothing is new, many rounds after the last news."""
    await anyio.sleep(1.0)
    rounds, before = dialling.status()["rounds"], wire.bytes
    await anyio.sleep(2.0)
    return (wire.bytes - before) / max(1, dialling.status()["rounds"] - rounds)


async def small_change(a: Runtime, b: Runtime, wire: Wire) -> int:
    """Bytes until one changed object of a large session is on the other side."""
    await a.commits.evolve("large", [add(n, text="x" * 100) for n in range(LARGE)], create=True)
    await until(same_head(a, b, "large"))
    before = wire.bytes
    patch = {"op": "update_object", "object_id": "o77", "structure_patch": {"text": "y"}, "mode": "merge"}
    await a.commits.evolve("large", [patch])
    await until(same_head(a, b, "large"))
    return wire.bytes - before


async def main() -> None:
    wire = Wire()
    with tempfile.TemporaryDirectory() as folder:
        async with anyio.create_task_group() as tasks:
            await tasks.start(wire.serve)
            await measure(folder, wire)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
