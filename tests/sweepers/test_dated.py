"""Facts past their date and proofs past their time: found at their time, once, wherever they are held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from cancelling import HOWS, How, cancelled_at
from conftest import START_MS, FakeClock, OpenRuntime
from making import branch, evolve, merged, patch, prove, remove, thing

from cks_runtime.model.events import TemporalConflictDetected, VerificationExpired
from cks_runtime.model.times import format_ms
from cks_runtime.runtime import Runtime
from cks_runtime.store.conflicts import RecordRow
from sweepers import ProvenanceStalenessSweeper, SweepReport, TemporalStalenessSweeper
from sweepers import dated as dated_sweepers

TTL_S = 3600.0


def temporal(rt: Runtime) -> TemporalStalenessSweeper:
    return TemporalStalenessSweeper(rt, 3600)


def provenance(rt: Runtime, ttl_s: float = TTL_S) -> ProvenanceStalenessSweeper:
    return ProvenanceStalenessSweeper(rt, 3600, ttl_s)


def due(id: str, after_ms: int = 1000, **more: Any) -> dict[str, Any]:
    return thing(id, valid_until=format_ms(START_MS + after_ms), **more)


async def records(rt: Runtime, kind: str = "temporal", state: str = "open") -> list[RecordRow]:
    return await rt.conflicts.page(kind, state, limit=500)


async def objects(rt: Runtime, kind: str = "temporal", state: str = "open") -> list[tuple[str, str]]:
    found = await records(rt, kind, state)
    return sorted((record.session_id, str(record.body["object_ids"][0])) for record in found)


# ---- temporal


async def test_a_fact_falls_due_strictly_after_its_time(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", due("a", 1000), due("b", 1001), due("never"), patch("never", valid_until=None))
    sweeper = temporal(rt)
    assert (await sweeper.sweep()).raised == 0
    assert await sweeper.due_in_ms(clock()) == 1001
    clock.forward(ms=1000)
    assert (await sweeper.sweep()).raised == 0
    assert await sweeper.due_in_ms(clock()) == 1
    clock.forward(ms=1)
    assert (await sweeper.sweep()).raised == 1
    assert await objects(rt) == [("s", "a")] and await sweeper.due_in_ms(clock()) == 1
    clock.forward(ms=1)
    assert (await sweeper.sweep()).raised == 1
    assert await objects(rt) == [("s", "a"), ("s", "b")] and await sweeper.due_in_ms(clock()) is None
    clock.forward(days=400)
    assert (await sweeper.sweep()).raised == 0


async def test_a_raised_expiry_tells_what_expired(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", due("a"))
    clock.forward(s=2)
    async with rt.bus.subscribe(TemporalConflictDetected) as events:
        await temporal(rt).sweep()
        event = events.receive_nowait()
    assert isinstance(event, TemporalConflictDetected)
    assert (event.object_id, event.session_id, event.at_ms) == ("a", "s", clock())
    (diagnostic,) = event.diagnostics
    assert diagnostic["code"] == "CKS-EXT-TEMPORAL-VALIDITY"
    assert diagnostic["valid_until"] == format_ms(START_MS + 1000)
    async with rt.store.reader() as reader:
        found = await reader.fetch("SELECT task_type, session_id, dedupe_key FROM cks_outbox_tasks")
    assert [tuple(row) for row in found] == [("temporal_conflict", "s", event.record_id)]


async def test_facts_fall_due_while_nobody_edits_and_after_a_restart(
    open_rt: OpenRuntime, clock: FakeClock
) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", due("a"), due("b", 90_000))
        await temporal(rt).sweep()
    clock.forward(s=60)
    async with open_rt() as rt:
        assert (await temporal(rt).sweep()).raised == 1
    clock.forward(s=60)
    async with open_rt() as rt:
        report = await temporal(rt).sweep()
        assert (report.sessions, report.due_rows, report.raised) == (0, 1, 1)


async def test_a_fact_that_is_past_its_date_when_written_is_raised(rt: Runtime) -> None:
    await temporal(rt).sweep()
    await evolve(rt, "s", due("old", -5000))
    assert (await temporal(rt).sweep()).raised == 1


async def test_extending_archiving_or_removing_closes_the_record(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", due("a"), due("b"), due("c"))
    clock.forward(s=5)
    await temporal(rt).sweep()
    await evolve(
        rt, "s", patch("a", valid_until=format_ms(clock() + 9000)), patch("b", archived=True), remove("c")
    )
    await temporal(rt).sweep()
    assert await records(rt) == []
    assert {record.closed_how for record in await records(rt, state="closed")} == {"cause_gone"}
    clock.forward(s=10)
    assert (await temporal(rt).sweep()).raised == 1
    assert await objects(rt) == [("s", "a")] and (await records(rt))[0].occurrence == 1, "another date"


async def test_a_date_that_returns_is_the_next_occurrence(rt: Runtime, clock: FakeClock) -> None:
    date = format_ms(START_MS + 1000)
    await evolve(rt, "s", due("a"))
    clock.forward(s=5)
    await temporal(rt).sweep()
    await evolve(rt, "s", patch("a", valid_until=None))
    await temporal(rt).sweep()
    await evolve(rt, "s", patch("a", valid_until=date))
    assert (await temporal(rt).sweep()).raised == 1
    assert [record.occurrence for record in await records(rt)] == [2]


async def test_an_object_in_several_sessions_is_raised_in_each(rt: Runtime, clock: FakeClock) -> None:
    for session_id in ("s", "t"):
        await evolve(rt, session_id, due("a"))
    await evolve(rt, "gone", due("a"))
    await evolve(rt, "gone", remove("a"))
    await temporal(rt).sweep()
    clock.forward(s=5)
    assert (await temporal(rt).sweep()).raised == 2
    assert await objects(rt) == [("s", "a"), ("t", "a")]


async def test_only_the_version_a_head_holds_counts(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", due("a", 1000))
    await evolve(rt, "s", patch("a", valid_until=format_ms(START_MS + 60_000)))
    await temporal(rt).sweep()
    clock.forward(s=5)
    report = await temporal(rt).sweep()
    assert (report.due_rows, report.raised) == (1, 0)
    clock.forward(s=60)
    assert (await temporal(rt).sweep()).raised == 1


async def test_a_closed_session_is_swept(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", due("a"))
    await rt.branches.close("s")
    clock.forward(s=5)
    assert (await temporal(rt).sweep()).raised == 1


# ---- branches


async def test_what_a_branch_inherits_belongs_to_its_parent(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", due("a"), due("b", 3000))
    other = await branch(rt)
    await evolve(rt, other, due("own", 2000), patch("b", note="as due as before"))
    clock.forward(s=5)
    await temporal(rt).sweep()
    assert await objects(rt) == [("s", "a"), ("s", "b"), (other, "own")]
    await evolve(rt, other, patch("a", note="touched"))
    assert (await temporal(rt).sweep()).raised == 0
    await evolve(rt, other, patch("a", valid_until=format_ms(START_MS + 1)))
    assert (await temporal(rt).sweep()).raised == 1, "another date than its parent's"
    await merged(rt, "s", other)
    await temporal(rt).sweep()
    assert ("s", "own") in await objects(rt)


async def test_the_order_of_editing_and_expiring_makes_no_difference(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", due("a"), due("b"))
    early, late = await branch(rt), await branch(rt)
    await evolve(rt, early, patch("a", note=1))
    await temporal(rt).sweep()
    clock.forward(s=5)
    await temporal(rt).sweep()
    await evolve(rt, late, patch("a", note=1))
    await temporal(rt).sweep()
    assert await objects(rt) == [("s", "a"), ("s", "b")]


# ---- provenance


async def test_a_proof_expires_after_its_time(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", thing("a"))
    await prove(rt, "s", "a", "proof", clock())
    sweeper = provenance(rt)
    clock.forward(s=TTL_S)
    assert (await sweeper.sweep()).raised == 0
    clock.forward(ms=1)
    async with rt.bus.subscribe(VerificationExpired) as events:
        assert (await sweeper.sweep()).raised == 1
        event = events.receive_nowait()
    assert isinstance(event, VerificationExpired) and event.object_id == "proof"
    (diagnostic,) = event.diagnostics
    assert diagnostic["code"] == "CKS-EXT-PROVENANCE-EXPIRED"
    assert (diagnostic["subject_id"], diagnostic["source_url"]) == ("a", "https://example.org/a")
    assert diagnostic["checked_at"] == format_ms(START_MS)


async def test_a_superseded_proof_is_settled(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", thing("a"))
    await prove(rt, "s", "a", "old", clock())
    clock.forward(s=2 * TTL_S)
    await provenance(rt).sweep()
    assert await objects(rt, "provenance") == [("s", "old")]
    await prove(rt, "s", "a", "new", clock())
    await evolve(rt, "s", patch("old", superseded_by="new"))
    await provenance(rt).sweep()
    assert await records(rt, "provenance") == []
    clock.forward(s=2 * TTL_S)
    assert (await provenance(rt).sweep()).raised == 1
    assert await objects(rt, "provenance") == [("s", "new")]


async def test_another_time_to_live_is_applied_to_what_was_checked_before(
    open_rt: OpenRuntime, clock: FakeClock
) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", thing("a"), thing("b"))
        await prove(rt, "s", "a", "proof-a", clock())
        clock.forward(s=TTL_S)
        await prove(rt, "s", "b", "proof-b", clock())
        clock.forward(s=TTL_S / 2)
        await provenance(rt).sweep()
        assert await objects(rt, "provenance") == [("s", "proof-a")]
    async with open_rt() as rt:
        shorter = await provenance(rt, TTL_S / 4).sweep()
        assert shorter.raised == 1, "nothing moved and nothing new fell due: the setting alone did it"
        assert await objects(rt, "provenance") == [("s", "proof-a"), ("s", "proof-b")]
        await provenance(rt, 10 * TTL_S).sweep()
        assert await objects(rt, "provenance") == []
        clock.forward(s=9 * TTL_S)
        assert (await provenance(rt, 10 * TTL_S).sweep()).raised == 1
        assert [record.occurrence for record in await records(rt, "provenance")] == [2]


# ---- pages, races, clocks


async def test_many_facts_of_one_millisecond_and_over_pages(
    rt: Runtime, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dated_sweepers, "DUE_PAGE", 10)
    await evolve(
        rt, "s", *(due(f"one-{n}", 1000) for n in range(25)), *(due(f"b{n}", 2000 + n) for n in range(23))
    )
    await temporal(rt).sweep()
    clock.forward(s=5)
    report = await temporal(rt).sweep()
    assert (report.due_rows, report.raised) == (48, 48) and len(await records(rt)) == 48
    assert (await temporal(rt).sweep()).due_rows == 0


async def test_many_facts_of_one_commit_are_judged_in_turns(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweepers import base

    monkeypatch.setattr(base, "CHUNK", 7)
    await evolve(rt, "s", *(due(f"o{n}", -1) for n in range(30)))
    report = await temporal(rt).sweep()
    assert (report.sessions, report.raised) == (1, 30)
    assert (await temporal(rt).sweep()).raised == 0


class _Racing(TemporalStalenessSweeper):
    """Lets somebody commit between the reading of due rows and the moving of the mark."""

    def __init__(self, rt: Runtime, edits: Sequence[Any]) -> None:
        super().__init__(rt, 3600)
        self.edits = list(edits)

    async def _raise_held(self, page: Any, now_ms: int) -> int:
        raised = await super()._raise_held(page, now_ms)
        if self.edits:
            await evolve(self.rt, *self.edits.pop(0))
        return raised


async def test_a_commit_between_reading_and_marking_is_not_missed(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", due("a"))
    await evolve(rt, "t", thing("x"))
    await temporal(rt).sweep()
    clock.forward(s=5)
    racing = _Racing(rt, [("t", due("late", 900)), ("t", due("later", 800)), ("u", due("a"))])
    await racing.sweep()
    await racing.sweep()
    assert await objects(rt) == [("s", "a"), ("t", "late"), ("t", "later"), ("u", "a")]
    assert (await temporal(rt).sweep()).raised == 0


async def test_two_sweepers_at_once_raise_each_expiry_once(open_rt: OpenRuntime, clock: FakeClock) -> None:
    async with open_rt() as one, open_rt() as two:
        for number in range(8):
            await evolve(one, f"s{number}", due("a"), due(f"b{number}"))
        clock.forward(s=5)
        reports: list[SweepReport] = []

        async def sweep(rt: Runtime) -> None:
            reports.append(await temporal(rt).sweep())

        async with anyio.create_task_group() as tasks:
            for rt in (one, two, one):
                tasks.start_soon(sweep, rt)
        assert sum(report.raised for report in reports) == 16 == len(await records(one))
        seen = [event async for event in one.journal.replay(types=[TemporalConflictDetected])]
        assert len(seen) == 16


async def test_a_clock_that_goes_back_neither_repeats_nor_loses(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", due("a"))
    clock.forward(s=10)
    assert (await temporal(rt).sweep()).raised == 1
    clock.forward(s=-10)
    await evolve(rt, "s", due("b", 5000), patch("a", note=1))
    await temporal(rt).sweep()
    assert ("s", "a") in await objects(rt)
    clock.forward(s=20)
    await temporal(rt).sweep()
    assert await objects(rt) == [("s", "a"), ("s", "b")]
    assert {record.occurrence for record in await records(rt)} == {1}


async def test_a_damaged_object_is_passed_over(open_rt: OpenRuntime, clock: FakeClock) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", due("a"), due("b"), due("c", 60_000))
        clock.forward(s=5)
        await temporal(rt).sweep()
        await evolve(rt, "s", patch("c", note=1))
        _, graph = await rt.sessions.head("s")
        async with rt.store.unit() as unit:
            for id in ("a", "c"):
                await unit.execute("UPDATE blobs SET data = x'00' WHERE hash = ?", graph[id].hash)
    async with open_rt() as rt:
        await evolve(rt, "s", patch("b", note=1), due("d", 7000))
        await temporal(rt).sweep()
        clock.forward(s=100)
        await temporal(rt).sweep()
        assert await objects(rt) == [("s", "a"), ("s", "b"), ("s", "d")], (
            "c cannot be read, a stays as it was"
        )


@pytest.mark.parametrize("how", HOWS)
async def test_a_sweep_cancelled_at_any_await_is_made_up_for(rt: Runtime, clock: FakeClock, how: How) -> None:
    at = raised = 0
    suspended = True
    while suspended:
        at += 1
        await evolve(rt, f"s{at}", due("old", -5), due(f"soon{at}", 1000 * at))
        clock.forward(s=1)
        suspended = await cancelled_at(at, temporal(rt).sweep(), how)
        await temporal(rt).sweep()
        clock.forward(ms=1)
        await temporal(rt).sweep()
        now = await objects(rt)
        assert len(now) == len(set(now)) >= raised
        raised = len(now)
    assert at > 10 and raised == 2 * at, "every fact, the last one a millisecond after its time"
    told = [event async for event in rt.journal.replay(types=[TemporalConflictDetected])]
    assert len(told) == raised and {record.occurrence for record in await records(rt)} == {1}
