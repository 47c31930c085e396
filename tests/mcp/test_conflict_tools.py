"""The queues of conflicts and runtime_status, through one and two real servers and over restarts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from serving import Agent, add, infer, serving, settle, update

QUEUE = "list_inference_conflicts"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Agent, Agent]]:
    db_path = tmp_path_factory.mktemp("conflicts") / "cks.db"
    async with serving(db_path, name="one") as one, serving(db_path, name="two", mode="legacy") as two:
        yield one, two


async def disagreement(agent: Agent, *more: Any) -> str:
    """A session with two active steps for one conclusion."""
    steps = (infer("step-a", ["fact"], "obj-42", 0.9), infer("step-b", ["fact"], "obj-42", 0.4))
    return await agent.session(add("fact"), add("obj-42"), *steps, *more)


async def queued(agent: Agent, session_id: str, count: int = 1) -> dict[str, Any]:
    """What waits for a session, once that many notices do."""
    return await agent.until(QUEUE, lambda told: told["count"] >= count, session_id=session_id, peek=True)


async def test_peeking_leaves_draining_takes_and_the_record_stays_open(pair: tuple[Agent, Agent]) -> None:
    one, two = pair
    began = time.time()
    name = await disagreement(one)
    seen = await queued(two, name)
    assert set(seen) == {"count", "conflicts", "remaining", "dropped", "enabled", "last_sweep_at"}
    assert (seen["count"], seen["remaining"], seen["dropped"], seen["enabled"]) == (1, 0, 0, True)
    assert seen["last_sweep_at"].endswith("Z")
    (record,) = seen["conflicts"]
    assert isinstance(record["detected_at"], float) and began - 1 < record["detected_at"] < time.time() + 1
    assert (record["session_id"], record["version_id"]) == (name, await one.head(name))
    assert (record["state"], record["occurrence"]) == ("open", 1)
    (diagnostic,) = record["diagnostics"]
    assert diagnostic["message"] == (
        "2 active InferenceStep(s) reach conclusion 'obj-42' with disagreeing confidence values "
        "(0.9: ['step-a'], 0.4: ['step-b'])."
    )
    assert (await queued(one, name))["conflicts"] == [record]
    taken = await two.ok(QUEUE, session_id=name)
    assert taken["count"] == 1 and taken["remaining"] == 0
    assert taken["conflicts"][0]["record_id"] == record["record_id"]
    for agent in pair:
        for arguments in ({}, {"peek": True}):
            empty = await agent.ok(QUEUE, session_id=name, **arguments)
            assert (empty["count"], empty["conflicts"], empty["remaining"], empty["enabled"]) == (
                0,
                [],
                0,
                True,
            )
        for _ in range(2):
            opened = await agent.ok(QUEUE, session_id=name, state="open")
            assert [r["record_id"] for r in opened["conflicts"]] == [record["record_id"]]
        assert (await agent.ok(QUEUE, session_id=name, state="closed"))["count"] == 0
    await one.evolve(name, settle("obj-42", "step-a", "checked"))
    closed = await two.until(QUEUE, lambda told: told["count"] == 1, session_id=name, state="closed")
    assert closed["conflicts"][0]["closed_how"] and closed["conflicts"][0]["closed_at"].endswith("Z")
    assert (await one.ok(QUEUE, session_id=name, state="open"))["count"] == 0


async def test_what_comes_back_is_told_again_and_what_stands_is_not(pair: tuple[Agent, Agent]) -> None:
    one, two = pair
    name = await disagreement(one)
    first = (await queued(two, name))["conflicts"][0]
    assert (await one.ok(QUEUE, session_id=name))["count"] == 1
    await one.evolve(name, update("step-a", justification="no change of what is claimed"))
    await one.evolve(name, update("step-a", confidence=0.4))
    await two.until(QUEUE, lambda told: told["count"] == 1, session_id=name, state="closed")
    assert (await one.ok(QUEUE, session_id=name, peek=True))["count"] == 0
    await two.evolve(name, update("step-a", confidence=0.9))
    again = (await queued(one, name))["conflicts"][0]
    assert again["record_id"] == first["record_id"] and again["occurrence"] == 2


async def test_a_replaced_premise_names_the_current_step(pair: tuple[Agent, Agent]) -> None:
    one, two = pair
    name = await one.session(
        add("fact"),
        add("middle"),
        add("claim"),
        infer("old", ["fact"], "middle", 0.5),
        infer("s", ["old"], "claim", 0.5),
    )
    await two.evolve(name, infer("newer", ["fact"], "middle", 0.6, supersedes="old"))
    await two.evolve(name, infer("newest", ["fact"], "middle", 0.7, supersedes="newer"))
    told = await one.until(
        QUEUE, lambda told: "newest" in str(told["conflicts"]), session_id=name, state="open"
    )
    (diagnostic,) = told["conflicts"][0]["diagnostics"]
    assert diagnostic["code"] == "CKS-EXT-STALE-PREMISE" and diagnostic["location"] == "s"
    assert (diagnostic["premise_id"], diagnostic["current_step_id"]) == ("old", "newest")


async def test_the_queue_is_paged_oldest_first(pair: tuple[Agent, Agent]) -> None:
    one, _ = pair
    name = await disagreement(one)
    for k in range(6):
        await queued(one, name, k + 1)
        steps = (infer(f"a{k}", ["fact"], f"c{k}", 0.1), infer(f"b{k}", ["fact"], f"c{k}", 0.2))
        await one.evolve(name, add(f"c{k}"), *steps)
    everything = (await queued(one, name, 7))["conflicts"]
    times = [record["detected_at"] for record in everything]
    assert times == sorted(times) and len({record["record_id"] for record in everything}) == 7
    for state in ({"peek": True}, {"state": "open"}):
        first = await one.ok(QUEUE, session_id=name, limit=3, **state)
        assert first["conflicts"] == everything[:3] and first["remaining"] == 4
        assert await one.pages(QUEUE, "conflicts", session_id=name, limit=3, **state) == everything
    error = await one.refused(QUEUE, "invalid_parameter", session_id=name, cursor=first["next_cursor"])
    assert error["details"]["argument"] == "cursor"
    taken = await one.ok(QUEUE, session_id=name, limit=2)
    assert [r["record_id"] for r in taken["conflicts"]] == [r["record_id"] for r in everything[:2]]
    assert taken["remaining"] == 5 and taken["next_cursor"]
    drained = await one.pages(QUEUE, "conflicts", session_id=name, limit=2, cursor=taken["next_cursor"])
    assert [r["record_id"] for r in drained] == [r["record_id"] for r in everything[2:]]
    assert (await one.ok(QUEUE, session_id=name))["count"] == 0


async def test_each_notice_goes_to_one_caller_of_two_processes(pair: tuple[Agent, Agent]) -> None:
    one, two = pair
    await one.pages(QUEUE, "conflicts")
    names = [await disagreement(one) for _ in range(24)]
    got: list[str] = []

    async def drain(agent: Agent) -> None:
        with anyio.fail_after(30):
            while len(got) < len(names):
                got.extend(r["session_id"] for r in (await agent.ok(QUEUE, limit=2))["conflicts"])

    async with anyio.create_task_group() as tasks:
        for agent in (one, one, two, two):
            tasks.start_soon(drain, agent)
    assert Counter(got) == Counter(names)


async def test_what_does_not_fit_one_answer_stays_on_the_queue(pair: tuple[Agent, Agent]) -> None:
    one, two = pair
    await one.pages(QUEUE, "conflicts")
    long = "é\u0001" * 240
    names = []
    for k in range(8):
        claims = [f"c{k}-{j:02}{long}" for j in range(12)]
        steps = [infer(f"s{s}{claim}", ["fact"], claim, s / 10) for s in (1, 2) for claim in claims]
        names.append(await one.session(add("fact"), *(add(claim) for claim in claims), *steps))
    await two.until(QUEUE, lambda told: told["count"] + told["remaining"] == 8, peek=True, limit=500)
    first = await two.ok(QUEUE, limit=500)
    assert 0 < first["count"] < 8 and first["remaining"] == 8 - first["count"]
    assert all(r["diagnostics_total"] == 12 for r in first["conflicts"] if "diagnostics_total" in r)
    found = first["conflicts"]
    while (told := await one.ok(QUEUE, limit=500))["count"]:
        found += told["conflicts"]
    assert Counter(r["session_id"] for r in found) == Counter(names)


async def test_wrong_arguments(pair: tuple[Agent, Agent]) -> None:
    agent, _ = pair
    for tool in (QUEUE, "list_gossip_conflicts"):
        for argument, value in (
            ("limit", 0),
            ("limit", 501),
            ("peek", 1),
            ("state", "drained"),
            ("state", None),
            ("session_id", "a b"),
            ("session_id", 5),
            ("cursor", ""),
            ("cursor", "WyJ4Iiwx"),
            ("everything", True),
        ):
            error = await agent.refused(tool, "invalid_parameter", **{argument: value})
            assert error["details"]["argument"] == argument, (tool, argument)
        assert (await agent.ok(tool, session_id="nobody", peek=True))["count"] == 0


async def test_without_gossip_its_queue_is_empty_and_says_so(pair: tuple[Agent, Agent]) -> None:
    for agent in pair:
        for arguments in ({}, {"peek": True}, {"state": "open"}, {"state": "closed"}):
            told = await agent.ok("list_gossip_conflicts", **arguments)
            assert told == {"count": 0, "conflicts": [], "remaining": 0, "dropped": 0, "enabled": False}


async def test_the_status_tells_how_things_stand(pair: tuple[Agent, Agent]) -> None:
    one, two = pair
    await one.pages(QUEUE, "conflicts")
    name = await disagreement(one, add("late", valid_until="2020-01-01T00:00:00Z"))
    await queued(one, name)
    told = await one.until("runtime_status", lambda s: s["queues"]["open_conflicts"].get("temporal", 0) > 0)
    other = await two.ok("runtime_status")
    assert told["replica_id"] == other["replica_id"] and len(told["replica_id"]) == 16
    assert told["instance_id"] != other["instance_id"] and set(told["versions"]) >= {"cks", "mcp", "sqlite"}
    assert told["gossip"] == {"enabled": False}
    assert set(told["sweepers"]) == {"inference", "provenance", "temporal"}
    for sweeper in told["sweepers"].values():
        assert sweeper["enabled"] is True and sweeper["last_run_at"].endswith("Z") and sweeper["found"] >= 0
        assert "next_run_at" in sweeper and not any(key.endswith("_ms") for key in sweeper)
    queue = told["queues"]["inference"]
    assert queue["depth"] == 1 and queue["oldest_at"].endswith("Z")
    assert told["queues"]["gossip"] == {"depth": 0, "oldest_at": None, "dropped": 0}
    waiting = {(row["task_type"], row["status"]): row["count"] for row in told["queues"]["outbox"]}
    assert waiting[("inference_conflict", "PENDING")] >= 1 and waiting[("temporal_conflict", "PENDING")] >= 1
    assert told["store"]["kind"] == "sqlite" and told["store"]["bytes"]["total"] > 0
    assert told["journal"]["newest"] >= told["journal"]["oldest"] >= 1


async def test_notices_outlive_a_restart_and_drained_ones_do_not_return(tmp_path: Path) -> None:
    db_path = tmp_path / "cks.db"
    async with serving(db_path) as agent:
        drained, kept = await disagreement(agent), await disagreement(agent)
        await queued(agent, drained)
        await queued(agent, kept)
        assert (await agent.ok(QUEUE, session_id=drained))["count"] == 1
    async with serving(db_path, settings={"CKS_INFERENCE_SWEEP_INTERVAL": "off"}) as agent:
        told = await agent.ok(QUEUE, peek=True)
        assert [r["session_id"] for r in told["conflicts"]] == [kept]
        assert told["enabled"] is False and told["last_sweep_at"] is None
        assert {r["session_id"] for r in (await agent.ok(QUEUE, state="open"))["conflicts"]} == {
            drained,
            kept,
        }
        silent = await disagreement(agent)
        status = await agent.ok("runtime_status")
        assert status["sweepers"]["inference"]["enabled"] is False
        assert status["sweepers"]["temporal"]["enabled"] is True
        assert (await agent.ok(QUEUE, session_id=silent, state="open"))["count"] == 0
    async with serving(
        db_path
    ) as agent:  # what was committed while no sweeper ran is found at the next start
        told = await agent.until(QUEUE, lambda told: told["count"] == 2, peek=True)
        assert {r["session_id"] for r in told["conflicts"]} == {kept, silent}
        assert {r["session_id"] for r in (await agent.ok(QUEUE))["conflicts"]} == {kept, silent}
