"""Several processes on one file: nothing acknowledged is lost, nothing is handed out twice."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

from conftest import OpenRuntime
from making import evolve, ids_of, step, thing
from processes import Child

from cks_runtime.model.events import HeadMoved
from sweepers import SweeperTeam

EDITS = 150


async def test_two_processes_editing_one_session_lose_nothing(open_rt: OpenRuntime, tmp_path: Path) -> None:
    """Promise 10, at its fast size: losers of a race retry by themselves."""
    path = tmp_path / "cks.db"
    acknowledged = [
        id for child in [Child("edit", path, "s", name, EDITS) for name in "ab"] for id in child.finish()
    ]
    assert len(set(acknowledged)) == 2 * EDITS
    async with open_rt() as rt:
        assert await ids_of(rt, "s") == sorted(acknowledged)
        moves = [event async for event in rt.journal.replay(types=[HeadMoved])]
        assert len(moves) == 2 * EDITS
        for before, after in pairwise(moves):
            assert after.previous_id == before.version_id, "one line, every move from the last head"


async def test_compare_and_swap_between_processes_counts_right(open_rt: OpenRuntime, tmp_path: Path) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", thing("counter", value=0))
    for child in [Child("bump", tmp_path / "cks.db", "s", 40) for _ in range(3)]:
        assert child.finish() == ["40"]
    async with open_rt() as rt:
        _, graph = await rt.sessions.head("s")
        assert graph["counter"].structure == {"value": 120}


async def test_what_was_acknowledged_outlives_a_kill(open_rt: OpenRuntime, tmp_path: Path) -> None:
    """Promise 8, at its fast size: kill -9 at random points of a stream of commits."""
    rng = random.Random(8)
    acknowledged: list[str] = []
    for life in range(6):
        child = Child("edit", tmp_path / "cks.db", "s", f"life{life}", 10_000)
        for _ in range(rng.randrange(1, 30)):
            line = child.line()
            assert line is not None
            acknowledged.append(line)
        child.kill()
        acknowledged += child  # what it had said before it died
        async with open_rt() as rt:
            stands = await ids_of(rt, "s")
            assert set(acknowledged) <= set(stands)
            assert len(stands) <= len(acknowledged) + life + 1, "at most the commit it died in besides"


async def test_a_session_made_or_moved_by_another_process_is_seen_at_once(open_rt: OpenRuntime) -> None:
    async with open_rt() as one, open_rt() as two:
        await evolve(one, "s", thing("a"))
        assert await ids_of(two, "s") == ["a"]
        await evolve(two, "s", thing("b"))
        assert await ids_of(one, "s") == ["a", "b"]
        row = await one.branches.create("s")
        await two.branches.close(row.session_id)
        assert (await one.sessions.get(row.session_id)).closed


async def test_two_processes_drain_each_notice_once(open_rt: OpenRuntime, tmp_path: Path) -> None:
    async with open_rt() as rt:
        for number in range(30):
            await evolve(
                rt, f"s{number}", thing("c"), step("i", "c", confidence=0.1), step("j", "c", confidence=0.9)
            )
        await SweeperTeam.standard(rt).run_now()
        raised = {record.record_id for record in (await rt.inboxes["inference"].peek(limit=500)).records}
    assert len(raised) == 30
    children = [Child("drain", tmp_path / "cks.db", "inference") for _ in range(3)]
    drained = [id for child in children for id in child.finish()]
    assert sorted(drained) == sorted(raised), "each once, and none left out"


async def test_two_processes_sweeping_raise_each_conflict_once(open_rt: OpenRuntime, tmp_path: Path) -> None:
    async with open_rt() as rt:
        for number in range(20):
            await evolve(
                rt,
                f"s{number}",
                thing("c", valid_until="2020-01-01T00:00:00Z"),
                step("i", "c", confidence=0.1),
                step("j", "c", confidence=0.9),
            )
    raised = [int(child.finish()[0]) for child in [Child("sweep", tmp_path / "cks.db") for _ in range(3)]]
    assert sum(raised) == 40
    async with open_rt() as rt:
        assert await rt.conflicts.count_open() == {"inference": 20, "temporal": 20}
        kinds = [event.kind async for event in rt.journal.replay()]
        assert kinds.count("InferenceConflictDetected") == kinds.count("TemporalConflictDetected") == 20
        async with rt.store.reader() as reader:
            tasks = await reader.fetch("SELECT task_type, count(*) FROM cks_outbox_tasks GROUP BY task_type")
        assert dict(tasks) == {"inference_conflict": 20, "temporal_conflict": 20}
