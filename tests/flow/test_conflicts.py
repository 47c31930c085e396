"""Conflict records: what is raised, refreshed, replaced, closed and raised again, and what stays untold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from conftest import FakeClock, OpenRuntime
from hypothesis import given, settings
from hypothesis import strategies as st
from making import evolve, patch, remove, step, thing

from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.conflicts import Outcome
from cks_runtime.model.claims import Finding, record_id
from cks_runtime.model.events import ConflictClosed, ConflictRaised, Event, InferenceConflictDetected
from cks_runtime.runtime import Runtime
from cks_runtime.store import conflicts as rows
from cks_runtime.store.conflicts import RecordRow
from sweepers import SweeperTeam

DISAGREE = "CKS-EXT-INFERENCE-CONFIDENCE-CONFLICT"
STALE = "CKS-EXT-STALE-PREMISE"


def finding(anchor: str, essence: str, value: int = 0, kind: str = "temporal") -> Finding:
    diagnostic = {"code": "C", "location": anchor, "message": f"{essence} {value}", "severity": "WARNING"}
    return Finding(kind, anchor, [anchor, essence], diagnostic, (anchor,))


async def reconcile(
    rt: Runtime, kind: str, findings: Sequence[Finding], anchors: Sequence[str] | None, version: str = "v"
) -> Outcome:
    async with rt.store.unit() as unit:
        return await rt.conflicts.reconcile(unit, kind, "s", version, findings, anchors, rt.clock())


async def sweep(rt: Runtime) -> int:
    reports = await SweeperTeam.standard(rt).run_now("inference")
    return reports["inference"].raised


async def records(rt: Runtime, state: str = "open", kind: str = "inference") -> list[RecordRow]:
    return await rt.conflicts.page(kind, state)


async def tasks(rt: Runtime) -> dict[str, str]:
    """Record id -> type of its one task."""
    async with rt.store.reader() as reader:
        found = await reader.fetch("SELECT dedupe_key, task_type FROM cks_outbox_tasks")
    assert len(found) == len(dict(found))
    return dict(found)


async def told(rt: Runtime) -> list[Event]:
    return [event async for event in rt.journal.replay(types=[InferenceConflictDetected, ConflictClosed])]


def codes(record: RecordRow) -> list[str]:
    return [d["code"] for d in record.body["diagnostics"]]


async def disagreeing(rt: Runtime, session_id: str = "s") -> None:
    await evolve(rt, session_id, thing("c"), step("i", "c", confidence=0.9), step("j", "c", confidence=0.4))


# ---- raising


async def test_a_conflict_is_raised_with_its_notice_task_and_event(rt: Runtime, clock: FakeClock) -> None:
    await disagreeing(rt)
    async with rt.bus.subscribe(ConflictRaised) as events:
        assert await sweep(rt) == 1
        event = events.receive_nowait()
    (record,) = await records(rt)
    row = await rt.sessions.get("s")
    assert (record.session_id, record.version_id, record.occurrence) == ("s", row.head.hex(), 1)
    assert record.detected_at_ms == clock() and codes(record) == [DISAGREE]
    assert record.body["object_ids"] == ["c", "i", "j"]
    assert record.body["diagnostics"][0]["step_ids"] == ["i", "j"]
    assert isinstance(event, InferenceConflictDetected) and event.record_id == record.record_id
    assert event.diagnostics == record.body["diagnostics"] and event.seq == record.notice_no
    assert await tasks(rt) == {record.record_id: "inference_conflict"}
    async with rt.store.reader() as reader:
        ((payload,),) = await reader.fetch("SELECT payload FROM cks_outbox_tasks")
    assert record.record_id in payload and DISAGREE in payload


async def test_one_check_makes_one_record_of_both_kinds(rt: Runtime) -> None:
    await evolve(rt, "s", thing("c"), thing("d"), step("old", "d", confidence=0.5))
    await evolve(rt, "s", step("new", "d", confidence=0.5, supersedes="old"))
    await evolve(
        rt,
        "s",
        step("i", "c", "old", confidence=0.9),
        step("j", "c", confidence=0.4),
        step("k", "d", confidence=0.1),
    )
    assert await sweep(rt) == 1
    (record,) = await records(rt)
    assert sorted(codes(record)) == [DISAGREE, DISAGREE, STALE]
    assert await tasks(rt) == {record.record_id: "inference_conflict"}


async def test_an_open_record_is_not_raised_again_before_and_after_a_restart(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await disagreeing(rt)
        assert await sweep(rt) == 1
        await evolve(rt, "s", patch("i", justification="better"))
        assert await sweep(rt) == 0
        before = await told(rt)
    async with open_rt() as rt:
        assert await sweep(rt) == 0
        await evolve(rt, "s", patch("c", x=1))
        await evolve(rt, "s", patch("j", justification="too"))
        assert await sweep(rt) == 0
        assert await told(rt) == before and len(await records(rt)) == 1


# ---- refreshing, replacing, closing


async def test_newer_values_refresh_the_record_without_a_second_notice(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", thing("d"), thing("e"), step("old", "d"), step("cites", "e", "old"))
    await evolve(rt, "s", step("new", "d", supersedes="old"))
    await sweep(rt)
    await rt.inboxes["inference"].drain()
    (before,) = await records(rt)
    clock.forward(s=5)
    await evolve(rt, "s", step("newest", "d", supersedes="new"))
    assert await sweep(rt) == 0
    (after,) = await records(rt)
    assert after.record_id == before.record_id and after.body["diagnostics"][0]["current_step_id"] == "newest"
    assert after.version_id == (await rt.sessions.get("s")).head.hex() != before.version_id
    assert (after.updated_at_ms - before.updated_at_ms, after.detected_at_ms) == (5000, before.detected_at_ms)
    assert after.drained_at_ms == before.drained_at_ms is not None
    assert len(await told(rt)) == 1
    async with rt.store.reader() as reader:
        ((payload,),) = await reader.fetch("SELECT payload FROM cks_outbox_tasks")
    assert "newest" in payload


async def test_a_third_step_takes_the_old_conflicts_place_and_task(rt: Runtime) -> None:
    await disagreeing(rt)
    await sweep(rt)
    (first,) = await records(rt)
    await evolve(rt, "s", step("k", "c", confidence=0.1))
    assert await sweep(rt) == 1
    (second,) = await records(rt)
    assert second.record_id != first.record_id and second.body["diagnostics"][0]["step_ids"] == [
        "i",
        "j",
        "k",
    ]
    (closed,) = await records(rt, "closed")
    assert (closed.record_id, closed.closed_how) == (first.record_id, "replaced")
    assert await tasks(rt) == {second.record_id: "inference_conflict"}
    assert [type(event) for event in await told(rt)] == [
        InferenceConflictDetected,
        ConflictClosed,
        InferenceConflictDetected,
    ]


async def test_a_conflict_closes_by_itself_when_its_cause_is_gone(rt: Runtime, clock: FakeClock) -> None:
    await disagreeing(rt)
    await sweep(rt)
    clock.forward(s=9)
    await evolve(
        rt,
        "s",
        {"op": "resolve_inference_conflict", "conclusion_id": "c", "winner_id": "i", "reasoning": "measured"},
    )
    assert await sweep(rt) == 0
    assert await records(rt) == [] and await tasks(rt) == {}
    (closed,) = await records(rt, "closed")
    assert (closed.closed_how, closed.closed_at_ms) == ("cause_gone", clock())
    last = (await told(rt))[-1]
    assert isinstance(last, ConflictClosed)
    assert (last.record_id, last.how, last.occurrence) == (closed.record_id, "cause_gone", 1)


@pytest.mark.parametrize("gone", [remove("i"), remove("c"), patch("j", confidence=0.9)])
async def test_any_way_a_cause_can_go_closes_the_conflict(rt: Runtime, gone: dict[str, object]) -> None:
    await disagreeing(rt)
    await sweep(rt)
    extra = [remove("i"), remove("j")] if gone == remove("c") else []
    await evolve(rt, "s", *extra, gone)
    await sweep(rt)
    assert await records(rt) == [] and len(await records(rt, "closed")) == 1 and await tasks(rt) == {}


async def test_a_conflict_that_returns_is_its_next_occurrence(rt: Runtime) -> None:
    await disagreeing(rt)
    for occurrence in (1, 2, 3):
        assert await sweep(rt) == 1
        (record,) = await records(rt)
        assert record.occurrence == occurrence and record.drained_at_ms is None
        taken = await rt.inboxes["inference"].drain()
        assert [r.record_id for r in taken.records] == [record.record_id]
        await evolve(rt, "s", patch("j", confidence=0.9))
        await sweep(rt)
        await evolve(rt, "s", patch("j", confidence=0.4))
    raised = [event for event in await told(rt) if isinstance(event, InferenceConflictDetected)]
    assert [event.occurrence for event in raised] == [1, 2, 3]
    assert len({event.record_id for event in raised}) == 1


async def test_a_record_with_several_claims_closes_with_its_last(rt: Runtime) -> None:
    await evolve(
        rt,
        "s",
        *(thing(id) for id in "cd"),
        *(step(f"{c}{n}", c, confidence=n / 10) for c in "cd" for n in (1, 2)),
    )
    assert await sweep(rt) == 1
    (record,) = await records(rt)
    await evolve(rt, "s", remove("c1"))
    await sweep(rt)
    (left,) = await records(rt)
    assert left.record_id == record.record_id and left.body["object_ids"] == ["d", "d1", "d2"]
    await evolve(rt, "s", step("c3", "c", confidence=0.9))
    assert await sweep(rt) == 1, "a new disagreement about c is a record of its own"
    assert len(await records(rt)) == 2
    await evolve(rt, "s", remove("d1"))
    await sweep(rt)
    (last,) = await records(rt)
    assert last.body["object_ids"] == ["c", "c2", "c3"]
    assert await tasks(rt) == {last.record_id: "inference_conflict"}


async def test_an_acknowledged_conflict_is_not_raised_again(rt: Runtime) -> None:
    found = finding("a", "date")
    async with rt.store.unit() as unit:
        name, events = await rt.conflicts.acknowledge(unit, "temporal", "s", "v", found, rt.clock())
    assert [event.kind for event in events] == ["TemporalConflictDetected", "ConflictClosed"]
    assert (await reconcile(rt, "temporal", [found], ["a"])).events == ()
    assert await records(rt, "open", "temporal") == [] and await tasks(rt) == {}
    other = await reconcile(rt, "temporal", [found, finding("a", "another date")], ["a"])
    assert other.raised == 1
    async with rt.store.unit() as unit:
        again, events = await rt.conflicts.acknowledge(unit, "temporal", "s", "v", found, rt.clock())
    assert (again, events) == (name, [])


async def test_without_an_outbox_records_are_raised_all_the_same(open_rt: OpenRuntime) -> None:
    async with open_rt(db_path=":memory:") as rt:
        await disagreeing(rt)
        assert await sweep(rt) == 1 and len(await records(rt)) == 1
        assert await tasks(rt) == {}


async def test_many_conflicts_cost_few_statements(rt: Runtime) -> None:
    found = [finding(f"o{n}", "date") for n in range(400)]
    anchors = [one.anchor for one in found]
    for findings, changed in ((found, 400), (found, 0), ([], 400)):
        outcome = await reconcile(rt, "temporal", findings, anchors)
        assert len(outcome.events) == changed
        assert rt.store.last_statements < 25
    assert len(await records(rt, "closed", "temporal")) == 50, "a page"


# ---- laws

ANCHORS = "abc"
places = st.dictionaries(st.sampled_from(ANCHORS), st.sets(st.sampled_from("xyz"), max_size=2), min_size=1)


@settings(max_examples=25, deadline=None)
@given(kind=st.sampled_from(["temporal", "inference"]), rounds=st.lists(places, min_size=1, max_size=10))
def test_records_follow_what_is_found(kind: str, rounds: list[dict[str, set[str]]]) -> None:
    with TemporaryDirectory() as folder:
        anyio.run(partial(_follow, Path(folder) / "cks.db", kind, rounds))


async def _follow(path: Path, kind: str, rounds: list[dict[str, set[str]]]) -> None:
    standing: dict[str, set[str]] = {}
    notices: Counter[str] = Counter()
    async with Runtime.open(RuntimeConfig(db_path=str(path), sqlite_synchronous="NORMAL")) as rt:
        for number, found in enumerate(rounds):
            standing |= found
            findings = [
                finding(a, e, number, kind) for a, essences in sorted(found.items()) for e in sorted(essences)
            ]
            outcome = await reconcile(rt, kind, findings, sorted(found), version=f"v{number}")
            raised = [event.record_id for event in outcome.events if isinstance(event, ConflictRaised)]
            notices.update(raised)
            assert outcome.raised == len(raised)
            await _check(rt, kind, standing, notices)
            again = await reconcile(rt, kind, findings, sorted(found), version="later")
            assert again == Outcome(), "finding the same again is nothing"
        everywhere = [finding(a, e, 99, kind) for a, essences in standing.items() for e in essences]
        assert (await reconcile(rt, kind, everywhere, None)).events == ()
        await reconcile(rt, kind, [], None)
        await _check(rt, kind, {}, notices)


async def _check(rt: Runtime, kind: str, standing: dict[str, set[str]], notices: Counter[str]) -> None:
    """Open records have exactly the open claims among them, one task each, and as many notices as occurrences."""
    expected = {finding(a, e, kind=kind).claim("s") for a, essences in standing.items() for e in essences}
    async with rt.store.reader() as reader:
        claims = await rows.open_claims(reader, kind, "s", None)
    assert {claim.claim for claim in claims} == expected
    opened = {record.record_id: record for record in await records(rt, "open", kind)}
    assert {claim.record_id for claim in claims} == set(opened)
    for name, record in opened.items():
        own = [claim for claim in claims if claim.record_id == name]
        assert len(record.body["diagnostics"]) == len(own)
        assert record.occurrence == notices[name]
        if kind == "temporal":
            assert record.record_id == record_id([own[0].claim]) and len(own) == 1
    assert set(await tasks(rt)) == set(opened)
    assert {record.record_id for record in await records(rt, "closed", kind)} == set(notices) - set(opened)
