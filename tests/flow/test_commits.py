"""Writes to sessions: compare-and-swap, re-application, limits, and what a cancelled or lost write leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from cancelling import HOWS, How, cancelled_at
from conftest import FakeClock, OpenRuntime, location_of
from making import body, evolve, ids_of, patch, prove, relation, remove, step, thing, things

from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.commits import TRIES_MAX, Plan, State
from cks_runtime.model.errors import (
    HeadMoved,
    InvalidKnowledge,
    InvalidParameter,
    ObjectNotFound,
    SessionClosed,
    SessionNotFound,
    TooLarge,
)
from cks_runtime.model.events import HeadMoved as HeadMovedEvent
from cks_runtime.model.events import SessionCreated
from cks_runtime.model.history import FIRST_VERSION
from cks_runtime.model.knowledge import Limits
from cks_runtime.runtime import Runtime


@pytest.fixture
async def rt(body: str, open_rt: OpenRuntime, tmp_path: Any) -> AsyncIterator[Runtime]:
    async with open_rt(db_path=location_of(body, tmp_path)) as runtime:
        yield runtime


async def events_of(rt: Runtime) -> list[str]:
    return [event.kind async for event in rt.journal.replay()]


async def test_a_commit_moves_the_head_and_tells_it(rt: Runtime, clock: FakeClock) -> None:
    async with rt.bus.subscribe() as events:
        made = await evolve(rt, "s", thing("a"), title="Sun", author="ann", message="begin")
        clock.forward(s=1)
        moved = await evolve(rt, "s", patch("a", x=1), author="ben")
        told = await events.receive_batch()
    assert made.created and not made.no_op and not moved.created
    assert made.version.parents == (FIRST_VERSION.id,) and moved.version.parents == (made.version.id,)
    assert (made.version.author, made.version.message) == ("ann", "begin")
    assert moved.version.created_at_ms - made.version.created_at_ms == 1000
    row, graph = await rt.sessions.head("s")
    assert row.head == moved.version.id and row.generation == 2 and row.title == "Sun"
    assert graph is moved.after and graph["a"].structure == {"x": 1}
    assert [event.kind for event in told] == ["SessionCreated", "HeadMoved", "HeadMoved"]
    assert isinstance(told[0], SessionCreated) and told[0].version_id == FIRST_VERSION.id.hex()
    last = told[2]
    assert isinstance(last, HeadMovedEvent) and last.changed == 1 and last.origin == rt.instance_id
    assert (last.previous_id, last.version_id) == (made.version.id.hex(), moved.version.id.hex())


async def test_a_session_is_made_only_when_asked(rt: Runtime) -> None:
    with pytest.raises(SessionNotFound, match="'s'"):
        await rt.commits.evolve("s", things("a"))
    with pytest.raises(InvalidParameter):
        await rt.commits.evolve("s/../t", things("a"), create=True)
    made = await rt.commits.evolve("s", [], create=True, title="Empty")
    assert made.created and made.no_op and made.version == FIRST_VERSION
    assert await events_of(rt) == ["SessionCreated"]
    assert (await rt.sessions.get("s")).title == "Empty"


async def test_the_default_session_is_made_at_its_first_write(rt: Runtime) -> None:
    row, graph = await rt.sessions.head("main")
    assert row.head == FIRST_VERSION.id and len(graph) == 0
    assert not await rt.sessions.exists("main") and await events_of(rt) == []
    await rt.commits.evolve("main", things("a"))
    assert await rt.sessions.exists("main")


async def test_what_changes_nothing_makes_no_version(rt: Runtime) -> None:
    made = await evolve(rt, "s", thing("a", x=1))
    for operations in ([], [patch("a", x=1)], [thing("b"), remove("b")]):
        same = await evolve(rt, "s", *operations)
        assert same.no_op and same.version.id == made.version.id
    assert (await rt.commits.put("s", [body("a", x=1)])).no_op
    assert await events_of(rt) == ["SessionCreated", "HeadMoved"]


async def test_a_bad_operation_changes_nothing(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a"))
    row = await rt.sessions.get("s")
    for bad, error in (
        (remove("nobody"), ObjectNotFound),
        (thing("a"), InvalidKnowledge),
        (relation("r", "a", "nobody"), InvalidKnowledge),
        (step("i", "a", "nobody"), InvalidKnowledge),
    ):
        with pytest.raises(error):
            await evolve(rt, "s", thing("b"), bad)
    assert await rt.sessions.get("s") == row


async def test_removing_takes_relations_and_records_along_and_names_them(
    rt: Runtime, clock: FakeClock
) -> None:
    await evolve(rt, "s", *things("a", "b"), relation("r", "a", "b"))
    await prove(rt, "s", "a", "proof", clock())
    moved = await evolve(rt, "s", remove("a"))
    assert moved.cascade_relations == ("proof-link", "r") and moved.cascade_records == ("proof",)
    assert await ids_of(rt, "s") == ["b"]


async def test_an_expected_head_is_compare_and_swap(rt: Runtime) -> None:
    made = await evolve(rt, "s", thing("a"))
    moved = await evolve(rt, "s", thing("b"), expected_head=made.version.id.hex())
    await evolve(rt, "s", thing("c"), expected_head=moved.version.id.hex()[:8].upper())
    row = await rt.sessions.get("s")
    with pytest.raises(HeadMoved) as caught:
        await evolve(rt, "s", thing("d"), expected_head=made.version.id.hex())
    assert caught.value.details == {"current_head": row.head.hex()}
    for bad in ("", "1234567", "xyzxyzxyz", "0" * 65):
        with pytest.raises(InvalidParameter, match="expected_head"):
            await evolve(rt, "s", thing("d"), expected_head=bad)
    await evolve(rt, "new", thing("a"), expected_head=FIRST_VERSION.id.hex())
    assert await ids_of(rt, "s") == ["a", "b", "c"]


async def test_a_closed_session_takes_no_edits(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a"))
    await rt.branches.close("s")
    for write in (
        rt.commits.evolve("s", things("b")),
        rt.commits.evolve("s", []),
        rt.commits.put("s", [body("b")]),
    ):
        with pytest.raises(SessionClosed, match="'s'"):
            await write
    await rt.branches.close("s", reopen=True)
    await evolve(rt, "s", thing("b"))


async def test_text_that_cannot_be_stored_is_refused_by_name(rt: Runtime) -> None:
    for argument in ("title", "author", "message"):
        with pytest.raises(InvalidParameter, match=argument):
            await evolve(rt, "s", thing("a"), **{argument: "half \ud800"})
    assert await events_of(rt) == []


async def test_a_session_holds_at_most_so_many_objects(open_rt: OpenRuntime) -> None:
    async with open_rt(limits=Limits(objects=5)) as rt:
        await evolve(rt, "s", *things(*"abcde"))
        with pytest.raises(TooLarge, match="5"):
            await evolve(rt, "s", thing("f"))
        with pytest.raises(TooLarge, match="5"):
            await rt.commits.put("s", [body("f")])
        await evolve(rt, "s", remove("a"), thing("f"))
    async with open_rt(
        limits=Limits(objects=3)
    ) as rt:  # a limit that was lowered later lets a session shrink
        await evolve(rt, "s", patch("b", x=1))
        await evolve(rt, "s", remove("b"))
        with pytest.raises(TooLarge, match="3"):
            await evolve(rt, "s", thing("g"))


async def test_many_writers_of_one_process_lose_nothing(rt: Runtime) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(25):
            tasks.start_soon(lambda number=number: evolve(rt, "s", thing(f"o{number}")))
    assert await ids_of(rt, "s") == sorted(f"o{number}" for number in range(25))
    seqs = [event.seq async for event in rt.journal.replay(types=[HeadMovedEvent])]
    assert len(seqs) == 25 == len(set(seqs))
    assert rt.journal.published == max(seqs)


async def test_operations_are_applied_again_to_a_head_that_moved(rt: Runtime) -> None:
    """However often others are faster: the last try holds the write lock."""
    await evolve(rt, "s", thing("a", n=0))
    seen: list[object] = []

    async def plan(state: State, reader: object) -> Plan:
        seen.append((state.graph["a"].structure["n"], reader is not None))
        if reader is None:
            await evolve(rt, "s", patch("a", n=len(seen)))  # somebody is always faster
        changed = state.graph.with_changes({"late": body("late")})
        return Plan(changed, closed=False)

    moved = await rt.commits.advance("s", plan)
    assert seen == [(n, n == TRIES_MAX - 1) for n in range(TRIES_MAX)]
    assert moved.after["a"].structure == {"n": TRIES_MAX - 1} and "late" in moved.after
    assert (await rt.sessions.get("s")).head == moved.version.id


async def test_a_lost_race_with_an_expected_head_leaves_no_trace(rt: Runtime) -> None:
    made = await evolve(rt, "s", thing("a"))

    async def rows() -> list[int]:
        async with rt.store.reader() as reader:
            return [
                int((await reader.fetch(f"SELECT count(*) FROM {table}"))[0][0])
                for table in ("blobs", "versions", "journal", "due", "sessions")
            ]

    async def plan(state: State, reader: object) -> Plan:
        if not raced:
            raced.append(True)
            await evolve(rt, "s", thing("b"))
            raced.append(await rows())
        return Plan(
            state.graph.with_changes({"c": body("c", valid_until="2027-01-01T00:00:00Z")}), closed=False
        )

    raced: list[object] = []
    with pytest.raises(HeadMoved):
        await rt.commits.advance("s", plan, expected_head=made.version.id.hex())
    assert await rows() == raced[1]


async def test_a_commit_awaits_few_statements(open_rt: OpenRuntime, clock: FakeClock) -> None:
    """At most 12, whatever the size of the commit or of the session."""
    async with open_rt() as rt:
        for operations in (
            [thing("a")],
            [thing(f"o{n}", valid_until="2027-01-01T00:00:00Z") for n in range(300)],
            [patch(f"o{n}", x=n) for n in range(300)],
            [step("i", "a", "o1"), step("j", "a", "o2")],
        ):
            await evolve(rt, "s", *operations)
            assert 0 < rt.store.last_statements <= 12
        await prove(rt, "s", "a", "proof", clock())
        assert rt.store.last_statements <= 12
        row = await rt.branches.create("s")
        await evolve(rt, row.session_id, thing("b"))
        await evolve(rt, "s", thing("c"))
        await rt.branches.merge("s", row.session_id)
        assert rt.store.last_statements <= 12


@asynccontextmanager
async def again(rt: Runtime) -> AsyncIterator[Runtime]:
    """Another process on the same database; in memory, the same one without what it remembers."""
    if rt.store.location == ":memory:":
        rt.graphs.__init__(rt.store)
        yield rt
        return
    async with Runtime.open(RuntimeConfig(db_path=rt.store.location, clock=rt.clock)) as other:
        yield other


@pytest.mark.parametrize("how", HOWS)
async def test_a_commit_that_is_cancelled_at_any_await_stands_whole_or_not_at_all(
    rt: Runtime, how: How
) -> None:
    """Promise 11: the next write works, and what is remembered is what is stored."""
    await evolve(rt, "s", thing("first"))
    at = 0
    suspended = True
    while suspended:
        at += 1
        pair = [f"{at}-a", f"{at}-b"]
        before = set(await ids_of(rt, "s"))
        suspended = await cancelled_at(at, rt.commits.evolve("s", things(*pair)), how)
        after = set(await ids_of(rt, "s"))
        assert after - before in (set(), set(pair))
        await evolve(rt, "s", thing(f"{at}-next"))
    assert at > 6
    remembered = await ids_of(rt, "s")
    kept = [event.seq async for event in rt.journal.replay()]
    await rt.journal.pump()
    assert rt.journal.published == kept[-1]
    async with again(rt) as other:
        assert await ids_of(other, "s") == remembered
        assert (await other.sessions.get("s")).head == (await rt.sessions.get("s")).head


@pytest.mark.parametrize("how", HOWS)
async def test_branching_and_merging_cancelled_at_any_await(rt: Runtime, how: How) -> None:
    await evolve(rt, "s", thing("a"))

    async def whole(name: str) -> None:
        row = await rt.branches.create("s", title=name)
        await rt.commits.evolve(row.session_id, things(name))
        await evolve(rt, "s", thing(f"{name}-own"))
        await rt.branches.merge("s", row.session_id)

    at = 0
    suspended = True
    while suspended:
        at += 1
        suspended = await cancelled_at(at, whole(f"x{at}"), how)
        await evolve(rt, "s", patch("a", n=at))
    async with again(rt) as other:
        for row in await rt.sessions.page(None, "", 500):
            assert await other.sessions.get(row.session_id) == row
            assert await ids_of(other, row.session_id) == await ids_of(rt, row.session_id)
    assert f"x{at}" in await ids_of(rt, "s")


async def test_the_order_of_the_bus_is_that_of_the_journal(rt: Runtime) -> None:
    async with rt.bus.subscribe() as events:
        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(lambda number=number: evolve(rt, f"s{number % 3}", thing(f"o{number}")))
        await rt.journal.pump()
        told = await events.receive_batch()
    stored = [event async for event in rt.journal.replay()]
    assert told == stored
    assert [event async for event in rt.journal.replay()] == stored
    assert [event.seq for event in stored] == sorted({event.seq for event in stored})
