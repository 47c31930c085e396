"""What the processes of `processes.py` do: each command works on a database of its own accord and says what it did."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from multiprocessing.connection import Connection

import anyio

from cks_runtime.config import RuntimeConfig
from cks_runtime.model.errors import HeadMoved, StoreUnusable
from cks_runtime.runtime import Runtime
from sweepers import SweeperTeam

Say = Callable[[object], None]


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
    say(done)


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
    say(sum(report.raised for report in reports.values()))


def added(id: str) -> dict[str, object]:
    return {"op": "add_object", "identity": {"id": id, "type": "Thing", "name": id}, "structure": {}}


COMMANDS: dict[str, Callable[..., Awaitable[None]]] = {
    "identity": identity,
    "edit": edit,
    "bump": bump,
    "drain": drain,
    "sweep": sweep,
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
