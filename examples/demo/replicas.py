"""An act about replicas: two servers with databases of their own gossip over loopback."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from examples.demo.main_job import SOLAR_SYSTEM
from examples.demo.stage import PROGRAMS, Agent, Stage, agent, patch, short, until

PATIENCE_S = 15.0
INTERVAL_S = 0.3


class Pair:
    """Two replicas that know each other; either can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = secrets.token_urlsafe(48)
        self.ports = free_ports(2)

    def replica(self, number: int) -> AbstractAsyncContextManager[Agent]:
        name = ("anna", "bert")[number]
        return agent(
            name,
            self.folder / f"{name}.db",
            CKS_GOSSIP_ENABLED="true",
            CKS_GOSSIP_PORT=str(self.ports[number]),
            CKS_GOSSIP_PEERS=f"http://127.0.0.1:{self.ports[1 - number]}",
            CKS_GOSSIP_INTERVAL_S=str(INTERVAL_S),
            CKS_GOSSIP_SECRET=self.secret,
        )


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def play(stage: Stage) -> None:
    """From the first exchange to a replica that was away."""
    pair = Pair(stage.folder)
    async with pair.replica(0) as anna:
        async with pair.replica(1) as bert:
            await replicate(stage, anna, bert)
            await merge_alone(stage, anna, bert)
            await clash(stage, anna, bert)
            await agree(stage, anna, bert)
            await remove_and_close(stage, anna, bert)
        await come_back(stage, pair, anna)


async def replicate(stage: Stage, anna: Agent, bert: Agent) -> None:
    stage.act("Two replicas, each with a database of its own, gossip")
    knowledge = json.loads(SOLAR_SYSTEM.read_text(encoding="utf-8"))
    await anna.call("evolve_knowledge", knowledge=knowledge, message="Load the solar system")
    took = await equal(anna, bert)
    count = (await bert.call("explain_knowledge"))["counts"]["objects"]
    stage.check(
        count == len(knowledge["objects"]), f"Bert has what Anna loaded, {count} objects, after {took:.1f} s"
    )
    for number, note in enumerate(("first", "second", "third"), start=1):
        await anna.call("evolve_knowledge", operations=[patch("ceres", note=note)])
        await equal(anna, bert)
        seen = await field(bert, "ceres", "note")
        stage.check(seen == note, f"one-way edit number {number} replicates")


async def merge_alone(stage: Stage, anna: Agent, bert: Agent) -> None:
    await at_once(
        lambda: anna.call("evolve_knowledge", operations=[patch("eris", albedo=0.96)]),
        lambda: bert.call("evolve_knowledge", operations=[patch("eris", moons_known=1)]),
    )
    await equal(anna, bert)
    both = [await field(who, "eris", key) for who in (anna, bert) for key in ("albedo", "moons_known")]
    stage.check(
        both == [0.96, 1, 0.96, 1], "edits to different fields of one object merge by themselves, on both"
    )


async def clash(stage: Stage, anna: Agent, bert: Agent) -> None:
    stage.act("Edits to one field on both sides: one conflict, seen by both, settled once")
    for attempt in range(5):
        ours, theirs = (
            patch("pluto", radius_km=1189 + attempt / 10),
            patch("pluto", radius_km=1187 - attempt / 10),
        )
        await at_once(
            partial(anna.call, "evolve_knowledge", operations=[ours]),
            partial(bert.call, "evolve_knowledge", operations=[theirs]),
        )
        found = [await conflict(who) for who in (anna, bert)]
        if all(found):
            break
    else:
        stage.check(False, "a gossip conflict on both replicas")
        return
    first, second = found
    assert first is not None and second is not None
    stage.table(
        ("seen by", "record", "other side", "base", "objects"),
        [
            (
                who.name,
                short(c["record_id"]),
                c["source_session_id"],
                short(c["base_version_id"]),
                c["conflicts"],
            )
            for who, c in ((anna, first), (bert, second))
        ],
        "list_gossip_conflicts, peeked on both",
    )
    stage.check(first["record_id"] == second["record_id"], "the same record on both replicas")
    drained = await anna.call("list_gossip_conflicts")
    empty = await anna.call("list_gossip_conflicts")
    stage.check(drained["count"] >= 1 and empty["count"] == 0, "Anna drains it; her queue is empty")
    other = first["source_session_id"]
    told = await anna.call("explain_diff", other_session_id=other)
    rows = [
        (entry["object_id"], key, change.get("base"), change.get("from"), change.get("to"))
        for entry in told["modified"]
        for key, change in entry["changes"].items()
    ]
    stage.table(("object", "field", "base", "Anna", "Bert"), rows, f"explain_diff with {other}")
    stage.check(
        any(row[0] == "pluto" and row[2] is not None for row in rows), "both values and the base are told"
    )
    await ask_critics(stage, anna, bert)
    refused = await anna.call("resolve_gossip_conflict", target_session_id="main", source_session_id=other)
    done = await anna.call(
        "merge_branch", target_session_id="main", source_session_id=other, resolutions={"pluto": "branch_b"}
    )
    stage.check(
        not refused["merged"] and done["merged"], "nothing is decided alone; Anna merges with a resolution"
    )
    await equal(anna, bert)
    closed, _ = await until(lambda: all_closed(anna, bert), PATIENCE_S)
    same = await field(anna, "pluto", "radius_km") == await field(bert, "pluto", "radius_km")
    stage.check(
        closed is not None and same, "the record is closed on both replicas, and both have Bert's radius"
    )
    left = [(await who.call("list_dead_lettered_conflicts"))["tasks"] for who in (anna, bert)]
    stage.check(left == [[], []], "and its dead letter is gone with it")


async def agree(stage: Stage, anna: Agent, bert: Agent) -> None:
    """A second conflict, whose sides come to agree before anybody judges: its task is then a clean one."""
    for attempt in range(5):
        await at_once(
            partial(anna.call, "evolve_knowledge", operations=[patch("haumea", day_h=3.9 + attempt)]),
            partial(bert.call, "evolve_knowledge", operations=[patch("haumea", day_h=4.1 + attempt)]),
        )
        if await conflict(anna) and await conflict(bert):
            break
    else:
        stage.check(False, "a second gossip conflict on both replicas")
        return
    agreed = await field(anna, "haumea", "day_h")
    await bert.call("evolve_knowledge", operations=[patch("haumea", day_h=agreed)])
    await run_critics(anna, bert)
    await equal(anna, bert)
    closed, _ = await until(lambda: all_closed(anna, bert), PATIENCE_S)
    queues = [(await who.call("runtime_status"))["queues"]["outbox"] for who in (anna, bert)]
    waiting = [entry for queue in queues for entry in queue if entry["task_type"] == "gossip_conflict"]
    stage.check(
        closed is not None and not waiting,
        "once both sides agree, a clash settles as clean: record closed, task done",
    )


async def run_critics(*replicas: Agent) -> None:
    """One run of a critic on each replica's database."""
    for who in replicas:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("CKS_")}
        environment |= {"CKS_MCP_DB_PATH": str(who.database), "CKS_LOG_LEVEL": "ERROR"}
        await anyio.run_process([str(PROGRAMS / "cks-critic-agent"), "--once"], env=environment)


async def ask_critics(stage: Stage, *replicas: Agent) -> None:
    """A critic on each replica: only the one nearest to the session may judge, and this is not for a machine."""
    await run_critics(*replicas)
    letters = [
        (who.name, task)
        for who in replicas
        for task in (await who.call("list_dead_lettered_conflicts"))["tasks"]
    ]
    stage.table(
        ("replica", "task", "attempts", "why", "suggested call"),
        [
            (name, t["task_type"], t["attempts"], t["last_error"], t["suggestion"]["tool"])
            for name, t in letters
        ],
        "Both critics ran once",
    )
    stage.check(
        len(letters) == 1, "one critic dead-letters the structural conflict for review; the other leaves it"
    )


async def remove_and_close(stage: Stage, anna: Agent, bert: Agent) -> None:
    await bert.call("evolve_knowledge", operations=[{"op": "remove_object", "object_id": "styx"}])
    await equal(anna, bert)
    await anna.call("evolve_knowledge", operations=[patch("ceres", note="later")])
    await equal(anna, bert)
    gone = [await field(who, "styx", "discovery_year") for who in (anna, bert)]
    stage.check(gone == [None, None], "what one side removed is not resurrected")
    side = (await anna.call("create_branch", title="Side line"))["session_id"]
    await equal(anna, bert, side)
    await bert.call("close_session", session_id=side)
    await equal(anna, bert, side)
    answer = await anna.try_call("evolve_knowledge", session_id=side, operations=[patch("eris", x=1)])
    stage.check(answer.get("code") == "session_closed", "a session closed on one side is closed on the other")


async def come_back(stage: Stage, pair: Pair, anna: Agent) -> None:
    stage.act("A replica that was away comes back")
    await anna.call("evolve_knowledge", operations=[patch("mars", note="while Bert was away")])
    status = await anna.call("runtime_status")
    stage.say(
        f"Bert is stopped. Anna goes on; her peers: {[peer.get('address') for peer in status['gossip']['peers']]}"
    )
    async with pair.replica(1) as bert:
        await bert.call("evolve_knowledge", operations=[patch("venus", note="as soon as Bert was back")])
        took = await equal(anna, bert)
        notes = [await field(who, name, "note") for who in (anna, bert) for name in ("mars", "venus")]
        stage.check(None not in notes, f"all is equal again after {took:.1f} s, and both have both edits")


async def at_once(*calls: Callable[[], Awaitable[object]]) -> None:
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call)


async def equal(anna: Agent, bert: Agent, session_id: str = "main") -> float:
    """Wait until both stand on one version; the seconds it took. Raises RuntimeError when they never do."""

    async def same() -> dict[str, Any] | None:
        heads = set()
        for who in (anna, bert):
            seen = await who.try_call("explain_knowledge", session_id=session_id)
            heads.add(seen.get("head", {}).get("version_id", who.name))
        return {"heads": heads} if len(heads) == 1 else None

    found, took = await until(same, PATIENCE_S)
    if found is None:
        raise RuntimeError(f"the replicas did not become equal on {session_id} within {PATIENCE_S:.0f} s")
    return took


async def conflict(who: Agent) -> dict[str, Any] | None:
    """The first gossip conflict on the queue, once there is one."""

    async def queued() -> dict[str, Any] | None:
        found = await who.call("list_gossip_conflicts", peek=True)
        return found["conflicts"][0] if found["count"] else None

    found, _ = await until(queued, 20 * INTERVAL_S)
    return found


async def all_closed(*replicas: Agent) -> dict[str, Any] | None:
    """Something once no replica has an open gossip conflict."""
    counts = [(await who.call("list_gossip_conflicts", state="open"))["count"] for who in replicas]
    return {"open": 0} if not any(counts) else None


async def field(who: Agent, object_id: str, key: str) -> Any:
    """A field of an object; None where either is missing."""
    found = await who.try_call("explain_knowledge", object_id=object_id)
    return found.get("object", {}).get("structure", {}).get(key)
