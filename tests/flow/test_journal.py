"""The journal: what it replays, what it hands to the bus, what other processes wrote, and what it forgets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import anyio
import pytest
from conftest import FakeClock, OpenRuntime
from making import evolve, thing
from processes import Child

from cks_runtime.flow import journal
from cks_runtime.flow.bus import Subscription
from cks_runtime.flow.journal import PAGE, RETENTION_MS
from cks_runtime.model.events import (
    Event,
    HeadMoved,
    InferenceConflictDetected,
    SessionCreated,
    UnknownEvent,
    event_from_json,
    event_to_json,
)
from cks_runtime.runtime import Runtime
from cks_runtime.store.journal import append_events


class Noted(Event):
    """A kind of event from outside the package."""

    kind: Literal["Noted"] = "Noted"
    text: str


async def replayed(rt: Runtime, since: int = 0, *kinds: type[Event]) -> list[Event]:
    return [event async for event in rt.journal.replay(since, kinds)]


async def note(rt: Runtime, *texts: str, at_ms: int = 0) -> list[Event]:
    async with rt.store.unit() as unit:
        return await append_events(unit, [Noted(text=text, at_ms=at_ms) for text in texts])


async def heard(events: Subscription, count: int) -> list[Event]:
    found: list[Event] = []
    with anyio.fail_after(20):
        while len(found) < count:
            found += await events.receive_batch()
    return found


# ---- replay


async def test_a_replay_is_the_same_twice_and_in_pages(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        await evolve(rt, f"s{number}", thing("a"))
    whole = await replayed(rt)
    assert [event.kind for event in whole] == ["SessionCreated", "HeadMoved"] * 4
    monkeypatch.setattr(journal, "PAGE", 3)
    assert await replayed(rt) == whole == await replayed(rt)
    assert await replayed(rt, whole[2].seq) == whole[3:]
    assert await replayed(rt, 0, SessionCreated) == whole[::2]
    assert await replayed(rt, whole[-1].seq) == []
    assert await rt.journal.bounds() == (whole[0].seq, whole[-1].seq)


async def test_an_empty_journal_has_no_bounds(rt: Runtime) -> None:
    assert await rt.journal.bounds() == (0, 0) and await replayed(rt) == []


async def test_a_replay_is_what_the_bus_delivered(rt: Runtime) -> None:
    async with rt.bus.subscribe() as events:
        for number in range(5):
            await evolve(rt, "s", thing(f"o{number}"))
        assert await heard(events, 6) == await replayed(rt)


async def test_a_replay_survives_a_restart(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", thing("a"))
        before = await replayed(rt)
    async with open_rt() as rt, rt.bus.subscribe() as events:
        assert await replayed(rt) == before
        await rt.journal.pump()
        assert len(events) == 0, "what happened before is replayed on demand, not published again"
        assert rt.journal.published == before[-1].seq


# ---- kinds from elsewhere


async def test_a_further_kind_is_stored_and_comes_back_as_itself(rt: Runtime) -> None:
    async with rt.bus.subscribe(Noted) as events:
        stored = await note(rt, "one", "two")
        await rt.journal.told(stored)
        assert await heard(events, 2) == stored == await replayed(rt, 0, Noted)


def test_an_unknown_kind_keeps_what_was_stored() -> None:
    event = event_from_json("Later", '{"kind": "Later", "at_ms": 5, "session_id": "s", "more": [1]}', 7)
    assert isinstance(event, UnknownEvent)
    assert (event.kind, event.seq, event.at_ms, event.session_id) == ("Later", 7, 5, "s")
    assert event.body["more"] == [1]


@pytest.mark.parametrize("kind", ["HeadMoved", "Later"])
def test_a_damaged_row_is_kept_and_stops_nothing(kind: str) -> None:
    event = event_from_json(kind, '{"kind": "HeadM', 7)
    assert isinstance(event, UnknownEvent)
    assert (event.kind, event.seq, event.body) == (kind, 7, {"unreadable": '{"kind": "HeadM'})


def test_a_subclass_without_a_kind_of_its_own_takes_over_nothing() -> None:
    class Special(InferenceConflictDetected):
        pass

    event = InferenceConflictDetected(record_id="r", diagnostics=[{"code": "c"}], at_ms=3)
    assert type(event_from_json(event.kind, event_to_json(event), 0)) is InferenceConflictDetected
    assert Special(record_id="r").kind == event.kind


async def test_events_go_out_past_a_damaged_row(open_rt: OpenRuntime) -> None:
    async with open_rt() as reading, open_rt() as writing, reading.bus.subscribe() as events:
        await note(writing, "one", "two")
        async with writing.store.unit() as unit:
            await unit.execute("UPDATE journal SET body = 'torn' WHERE seq = 1")
        told = await heard(events, 2)
        assert isinstance(told[0], UnknownEvent) and isinstance(told[1], Noted)


# ---- other processes


async def test_what_another_process_commits_arrives_in_its_order(open_rt: OpenRuntime) -> None:
    async with (
        open_rt() as one,
        open_rt() as two,
        one.bus.subscribe() as first,
        two.bus.subscribe() as second,
    ):
        for number in range(6):
            await evolve((one, two)[number % 2], "s", thing(f"o{number}"))
        stored = await replayed(one)
        assert await heard(first, 7) == stored and await heard(second, 7) == stored
        moves = [event for event in stored if isinstance(event, HeadMoved)]
        assert [move.origin for move in moves] == [one.instance_id, two.instance_id] * 3


async def test_a_real_process_is_heard(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt, rt.bus.subscribe(HeadMoved) as events:
        child = Child("edit", rt.store.location, "s", "x", 5)
        told = await heard(events, 5)
        assert [event.session_id for event in told] == ["s"] * 5
        child.finish()


async def test_own_events_are_not_told_twice(open_rt: OpenRuntime) -> None:
    async with open_rt() as one, open_rt() as two, one.bus.subscribe() as events:
        await evolve(two, "s", thing("a"))
        await evolve(one, "s", thing("b"))
        await one.journal.pump()
        assert [event.seq for event in await heard(events, 3)] == [1, 2, 3]
        assert await one.journal.pump() == 0 and len(events) == 0


async def test_a_rolled_back_event_is_never_told(rt: Runtime) -> None:
    async with rt.bus.subscribe() as events:
        with pytest.raises(ZeroDivisionError):
            async with rt.store.unit() as unit:
                await append_events(unit, [Noted(text="lost")])
                raise ZeroDivisionError
        await rt.journal.pump()
        assert len(events) == 0 and await replayed(rt) == []
        await evolve(rt, "s", thing("a"))
        assert [event.seq for event in await heard(events, 2)] == [1, 2]


async def test_a_publication_that_is_cancelled_is_made_up_for(open_rt: OpenRuntime) -> None:
    async with open_rt() as one, open_rt() as two, one.bus.subscribe() as events:
        stored = await note(two, "one")
        with anyio.CancelScope() as scope:
            scope.cancel()
            await one.journal.told(stored)
        assert await heard(events, 1) == stored


# ---- retention


@pytest.fixture
async def old(rt: Runtime, clock: FakeClock) -> AsyncIterator[list[Event]]:
    yield await note(rt, *(f"old-{number}" for number in range(PAGE + 20)), at_ms=clock() - RETENTION_MS - 1)


async def test_events_older_than_the_retention_go(rt: Runtime, clock: FakeClock, old: list[Event]) -> None:
    (kept,) = await note(rt, "young", at_ms=clock() - RETENTION_MS)
    assert await rt.journal.trim(clock()) == len(old)
    assert await replayed(rt) == [kept]
    assert await rt.journal.trim(clock()) == 0


async def test_numbers_go_on_after_everything_was_trimmed(
    rt: Runtime, clock: FakeClock, old: list[Event]
) -> None:
    await rt.journal.trim(clock())
    assert await rt.journal.bounds() == (0, 0)
    await rt.journal.pump()
    async with rt.bus.subscribe() as events:
        await evolve(rt, "s", thing("a"))
        told = await heard(events, 2)
    assert [event.seq for event in told] == [old[-1].seq + 1, old[-1].seq + 2] and told == await replayed(rt)


async def test_only_so_many_events_are_kept(rt: Runtime, clock: FakeClock, monkeypatch: Any) -> None:
    monkeypatch.setattr(journal, "RETENTION_MAX", 3)
    stored = await note(rt, *"abcdefgh", at_ms=clock())
    assert await rt.journal.trim(clock()) == 5
    assert await replayed(rt) == stored[5:]
