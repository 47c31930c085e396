"""What the processes of `processes.py` do: each command works on a database of its own accord and says what it did."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing.connection import Connection

import anyio

from cks_runtime.config import RuntimeConfig
from cks_runtime.model.errors import HeadMoved, StoreFull, StoreUnusable
from cks_runtime.runtime import Runtime
from sweepers import SweeperTeam

Say = Callable[[str], None]


async def identity(rt: Runtime, say: Say) -> None:
    """Who this database is: the same for every process."""
    say(f"{rt.replica_id} {rt.keys.primary_id}")


async def edit(rt: Runtime, say: Say, session_id: str, name: str, count: str) -> None:
    """Adds objects one commit at a time; says each id once its commit returned."""
    for number in range(int(count)):
        await rt.commits.evolve(session_id, [added(f"{name}-{number}")], create=True)
        say(f"{name}-{number}")


async def bump(rt: Runtime, say: Say, session_id: str, count: str) -> None:
    """Adds one to a counter again and again, each time on the head it read."""
    done = 0
    while done < int(count):
        row, graph = await rt.sessions.head(session_id)
        value = graph["counter"].structure["value"]
        patch = {"op": "update_object", "object_id": "counter", "structure_patch": {"value": value + 1}}
        try:
            await rt.commits.evolve(session_id, [patch], expected_head=row.head.hex())
        except HeadMoved:
            continue
        done += 1
    say(str(done))


async def show(rt: Runtime, say: Say, session_id: str) -> None:
    """Says the ids that the session's head holds."""
    _, graph = await rt.sessions.head(session_id)
    say(" ".join(sorted(graph.ids())))


async def drain(rt: Runtime, say: Say, kind: str) -> None:
    """Takes notices off an inbox until it is empty; says each record it got."""
    while True:
        taken = await rt.inboxes[kind].drain(limit=3)
        for record in taken.records:
            say(record.record_id)
        if not taken.records and not taken.remaining:
            return


async def sweep(rt: Runtime, say: Say) -> None:
    """Sweeps once; says how many records it raised."""
    reports = await SweeperTeam.standard(rt).run_now()
    say(str(sum(report.raised for report in reports.values())))


async def fill(rt: Runtime, say: Say, step_bytes: str) -> None:
    """Lets no file grow past its size and a bit more, again and again; says each fault and what was acknowledged."""
    wal = rt.store.location + "-wal"
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    acknowledged = ["first"]
    await rt.commits.evolve("s", [added("first")], create=True)
    for room in range(0, 100_000, int(step_bytes)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(wal).st_size + room, most))
        try:
            for number in range(30):
                id = f"{room}-{number}"
                await rt.commits.evolve("s", [added(id)])
                acknowledged.append(id)
        except StoreFull:
            say("full")
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        await rt.commits.evolve("s", [added(f"{room}-after")])
        acknowledged.append(f"{room}-after")
        _, graph = await rt.sessions.head("s")
        assert sorted(graph.ids()) == sorted(acknowledged)
    say(" ".join(acknowledged))


def added(id: str) -> dict[str, object]:
    return {"op": "add_object", "identity": {"id": id, "type": "Thing", "name": id}, "structure": {}}


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {
    "identity": identity,
    "edit": edit,
    "bump": bump,
    "show": show,
    "drain": drain,
    "sweep": sweep,
    "fill": fill,
}


async def run(say: Say, command: str, path: str, arguments: tuple[str, ...]) -> None:
    async with Runtime.open(RuntimeConfig(db_path=path)) as rt:
        await COMMANDS[command](rt, say, *arguments)


def main(pipe: Connection, command: str, path: str, *arguments: str) -> None:
    try:
        anyio.run(partial(run, pipe.send, command, path, arguments))
    except StoreUnusable as error:
        pipe.send(error.message)
        sys.exit(2)
