"""Conflict inboxes: peeking, draining each notice at most once, refilling after a restart, and what is counted."""

from __future__ import annotations

import anyio
import pytest
from cancelling import HOWS, How, cancelled_at
from conftest import FakeClock, OpenRuntime
from making import evolve, remove, step, thing

from cks_runtime.flow import inbox as inboxes
from cks_runtime.flow.inbox import ConflictInbox
from cks_runtime.runtime import Runtime
from sweepers import SweeperTeam


async def conflicts(rt: Runtime, *session_ids: str) -> None:
    """One disagreement in each of these sessions, raised in this order."""
    for session_id in session_ids:
        await evolve(
            rt, session_id, thing("c"), step("i", "c", confidence=0.1), step("j", "c", confidence=0.9)
        )
        await SweeperTeam.standard(rt).run_now("inference")


def inbox(rt: Runtime) -> ConflictInbox:
    return rt.inboxes["inference"]


async def test_peeking_leaves_the_notices(rt: Runtime) -> None:
    assert (await inbox(rt).peek()).records == ()
    await conflicts(rt, "a", "b", "c")
    first = await inbox(rt).peek(limit=2)
    assert [record.session_id for record in first.records] == ["a", "b"] and first.remaining == 1
    rest = await inbox(rt).peek(after=first.records[-1].notice_no)
    assert [record.session_id for record in rest.records] == ["c"] and rest.remaining == 0
    assert await inbox(rt).peek(limit=2) == first
    only = await inbox(rt).peek("b")
    assert [record.session_id for record in only.records] == ["b"] and only.remaining == 0


async def test_draining_takes_the_oldest_and_never_the_conflict(rt: Runtime, clock: FakeClock) -> None:
    await conflicts(rt, "a", "b", "c")
    depth, oldest = await inbox(rt).depth()
    assert (depth, oldest) == (3, clock())
    clock.forward(s=3)
    taken = await inbox(rt).drain(limit=2)
    assert [record.session_id for record in taken.records] == ["a", "b"] and taken.remaining == 1
    assert {record.drained_at_ms for record in taken.records} == {clock()}
    assert [record.session_id for record in (await inbox(rt).drain()).records] == ["c"]
    assert (await inbox(rt).drain()).records == () and await inbox(rt).depth() == (0, None)
    assert len(await rt.conflicts.page("inference", "open")) == 3
    async with rt.store.reader() as reader:
        ((waiting,),) = await reader.fetch("SELECT count(*) FROM cks_outbox_tasks WHERE status = 'PENDING'")
    assert waiting == 3, "tasks stay claimable"


async def test_draining_one_session_leaves_the_others(rt: Runtime) -> None:
    await conflicts(rt, "a", "b")
    taken = await inbox(rt).drain("b")
    assert [record.session_id for record in taken.records] == ["b"] and taken.remaining == 0
    assert [record.session_id for record in (await inbox(rt).peek()).records] == ["a"]


async def test_each_notice_goes_to_one_of_many_callers(open_rt: OpenRuntime) -> None:
    async with open_rt() as one, open_rt() as two:
        await conflicts(one, *(f"s{n}" for n in range(12)))
        got: list[str] = []

        async def drain(rt: Runtime) -> None:
            while (taken := await inbox(rt).drain(limit=2)).records:
                got.extend(record.session_id for record in taken.records)

        async with anyio.create_task_group() as tasks:
            for rt in (one, two) * 3:
                tasks.start_soon(drain, rt)
        assert sorted(got) == sorted(f"s{n}" for n in range(12))


async def test_a_closed_conflict_leaves_the_queue(rt: Runtime) -> None:
    await conflicts(rt, "a", "b")
    await evolve(rt, "a", remove("i"))
    await SweeperTeam.standard(rt).run_now("inference")
    assert [record.session_id for record in (await inbox(rt).drain()).records] == ["b"]


async def test_a_restart_takes_up_what_nobody_drained(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await conflicts(rt, "a", "b", "c")
        await inbox(rt).drain(limit=1)
    async with open_rt() as rt:
        with anyio.fail_after(20):
            await inbox(rt).wait()
        assert [record.session_id for record in (await inbox(rt).drain()).records] == ["b", "c"]
    async with open_rt() as rt:
        assert (await inbox(rt).peek()).records == ()


async def test_every_waiter_is_woken_by_a_notice(open_rt: OpenRuntime) -> None:
    async with open_rt() as one, open_rt() as two:
        woken: list[Runtime] = []

        async def wait(rt: Runtime) -> None:
            await inbox(rt).wait()
            woken.append(rt)

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for rt in (one, one, two):
                    tasks.start_soon(wait, rt)
                await anyio.wait_all_tasks_blocked()
                await conflicts(one, "a")
        assert sorted(map(id, woken)) == sorted(map(id, (one, one, two)))


async def test_what_others_drained_wakes_nobody_twice(open_rt: OpenRuntime) -> None:
    async with open_rt() as one, open_rt() as two:
        await conflicts(one, "a")
        with anyio.fail_after(20):
            await inbox(two).wait()
        await inbox(one).drain()
        assert (await inbox(two).drain()).records == ()
        with anyio.move_on_after(0) as scope:
            await inbox(two).wait()
        assert scope.cancelled_caught, "an empty answer forgets what was known"


async def test_memory_is_bounded_and_what_it_forgets_is_still_read(
    open_rt: OpenRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "INBOX_MAX", 10)
    async with open_rt() as rt:
        names = [f"s{n:02}" for n in range(12)]
        await conflicts(rt, *names)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            await inbox(rt).wait()
        assert 0 < inbox(rt).dropped <= 3
        taken = await inbox(rt).drain(limit=500)
        assert [record.session_id for record in taken.records] == names
    async with open_rt() as rt:
        assert inbox(rt).dropped == 0


async def test_what_other_processes_drained_is_not_counted_as_dropped(
    open_rt: OpenRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inboxes, "INBOX_MAX", 10)
    async with open_rt() as one, open_rt() as two:
        for n in range(25):
            await conflicts(one, f"s{n}")
            await inbox(one).drain()
            await two.journal.pump()
        await anyio.wait_all_tasks_blocked()
        assert inbox(one).dropped == inbox(two).dropped == 0


async def test_a_refill_beyond_the_bound_is_counted(
    open_rt: OpenRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_rt() as rt:
        await conflicts(rt, *(f"s{n}" for n in range(7)))
    monkeypatch.setattr(inboxes, "INBOX_MAX", 5)
    async with open_rt() as rt:
        assert inbox(rt).dropped == 2
        assert len((await inbox(rt).drain()).records) == 7


@pytest.mark.parametrize("how", HOWS)
async def test_draining_cancelled_at_any_await_hands_out_each_notice_at_most_once(
    open_rt: OpenRuntime, how: How
) -> None:
    async with open_rt() as rt:
        await conflicts(rt, *(f"s{n:02}" for n in range(16)))
        got: list[str] = []

        async def take() -> None:
            got.extend(record.session_id for record in (await inbox(rt).drain(limit=1)).records)

        at = 0
        suspended = True
        while suspended:
            at += 1
            suspended = await cancelled_at(at, take(), how)
        rest = [record.session_id for record in (await inbox(rt).drain(limit=500)).records]
        assert len(set(got + rest)) == len(got + rest)
        assert len(await rt.conflicts.page("inference", "open")) == 16
