"""The team: woken by commits, by the next due time and by the metronome; status, stopping, and being off."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

import anyio
import apscheduler.schedulers.base
import apscheduler.triggers.interval
import pytest
from conftest import FakeClock, OpenRuntime
from making import evolve, prove, step, thing

from cks_runtime.flow.clock import wall_ms
from cks_runtime.model.errors import InvalidParameter, StoreFull
from cks_runtime.model.events import ConflictRaised, InferenceConflictDetected, TemporalConflictDetected
from cks_runtime.model.times import format_ms
from cks_runtime.runtime import Runtime
from sweepers import InferenceStalenessSweeper, SweeperTeam, SweepReport, metronome, team

OFF = {
    "inference_sweep_interval": None,
    "provenance_sweep_interval": None,
    "temporal_sweep_interval": None,
}


async def disagreeing(rt: Runtime, session_id: str = "s") -> None:
    await evolve(rt, session_id, thing("c"), step("i", "c", confidence=0.9), step("j", "c", confidence=0.4))


@asynccontextmanager
async def running(rt: Runtime) -> AsyncIterator[SweeperTeam]:
    sweepers = SweeperTeam.standard(rt)
    sweepers.start()
    yield sweepers
    sweepers.stop()


async def test_a_commit_is_swept_right_after(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt, running(rt), rt.bus.subscribe(ConflictRaised) as events:
        for session_id in ("s", "t"):
            await disagreeing(rt, session_id)
            with anyio.fail_after(20):
                event = await events.receive()
            assert isinstance(event, InferenceConflictDetected) and event.session_id == session_id


async def test_another_processs_commit_is_swept_too(open_rt: OpenRuntime) -> None:
    async with open_rt() as one, open_rt() as two, running(one), two.bus.subscribe(ConflictRaised) as events:
        await disagreeing(two)
        with anyio.fail_after(20):
            assert (await events.receive()).session_id == "s"


async def test_a_start_takes_up_what_moved_and_fell_due_before(
    open_rt: OpenRuntime, clock: FakeClock
) -> None:
    async with open_rt() as rt:
        await disagreeing(rt)
        await evolve(rt, "s", thing("d", valid_until=format_ms(clock() + 1000)))
    clock.forward(s=5)
    async with open_rt() as rt, rt.bus.subscribe(ConflictRaised) as events, running(rt):
        kinds = set()
        with anyio.fail_after(20):
            while len(kinds) < 2:
                kinds.add((await events.receive()).kind)
        assert kinds == {"InferenceConflictDetected", "TemporalConflictDetected"}


async def test_the_next_due_time_sets_an_alarm(open_rt: OpenRuntime) -> None:
    """By the wall clock: nobody edits, nobody pokes, and the metronome is hours away."""
    async with (
        open_rt(clock=wall_ms) as rt,
        running(rt),
        rt.bus.subscribe(TemporalConflictDetected) as events,
    ):
        due_ms = wall_ms() + 400
        await evolve(rt, "s", thing("d", valid_until=format_ms(due_ms)))
        with anyio.fail_after(20):
            event = await events.receive()
        assert event.at_ms > due_ms


# ---- the metronome


class Jumped(datetime):
    """A wall clock that jumped ahead by an hour, as after a laptop's sleep."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + timedelta(hours=1)


async def test_the_metronome_is_wired_to_every_sweeper(
    open_rt: OpenRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without events and alarms, an interval alone brings the sweep."""
    monkeypatch.setattr(team, "START_DELAY_S", 0)
    monkeypatch.setattr(SweeperTeam, "poke", lambda self: None)
    async with (
        open_rt(inference_sweep_interval=0.05) as rt,
        rt.bus.subscribe(ConflictRaised) as events,
        running(rt),
    ):
        await disagreeing(rt)
        with anyio.fail_after(20):
            assert (await events.receive()).session_id == "s"


async def test_a_late_beat_is_made_up_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[str] = []
    beaten = anyio.Event()

    def poke() -> None:
        beats.append("beat")
        beaten.set()

    clockwork = metronome.Metronome()
    clockwork.add("slow", 600, poke)
    assert clockwork.next_beat("slow") is None
    clockwork.start()
    first = clockwork.next_beat("slow")
    assert first is not None
    monkeypatch.setattr(apscheduler.schedulers.base, "datetime", Jumped)
    clockwork._scheduler.wakeup()
    with anyio.fail_after(20):
        await beaten.wait()
    await anyio.wait_all_tasks_blocked()
    assert beats == ["beat"], "six beats were missed, and one serves for all"
    following = clockwork.next_beat("slow")
    assert following is not None and following > first
    clockwork.stop()
    clockwork.stop()
    assert clockwork.next_beat("slow") is None


# ---- run_now, status, stop, off


async def test_running_now_reports_each_sweeper(rt: Runtime, clock: FakeClock) -> None:
    sweepers = SweeperTeam.standard(rt)
    await disagreeing(rt)
    await evolve(rt, "s", thing("d", valid_until="2020-01-01T00:00:00Z"))
    await prove(rt, "s", "c", "proof", clock() - 10**11)
    reports = await sweepers.run_now()
    assert {name: report.raised for name, report in reports.items()} == {
        "inference": 1,
        "provenance": 1,
        "temporal": 1,
    }
    assert set(await sweepers.run_now("temporal")) == {"temporal"}
    status = sweepers.status()
    assert [status[name].found for name in ("inference", "provenance", "temporal")] == [1, 1, 1]
    assert all(one.enabled and one.last_run_ms == clock() for one in status.values())
    with pytest.raises(InvalidParameter, match="'nobody'"):
        await sweepers.run_now("nobody")


async def test_status_before_and_after_the_first_beat(
    open_rt: OpenRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(team, "START_DELAY_S", 0)
    async with open_rt(temporal_sweep_interval=None) as rt:
        sweepers = SweeperTeam.standard(rt)
        status = sweepers.status()
        assert (status["inference"].interval_s, status["inference"].last_run_ms) == (300.0, None)
        assert status["inference"].next_run_ms is None
        assert (status["temporal"].enabled, status["temporal"].interval_s) == (False, None)
        sweepers.start()
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(20):
            while sweepers.status()["inference"].next_run_ms is None:
                await anyio.lowlevel.checkpoint()
        sweepers.stop()


async def test_a_sweeper_that_is_off_is_off_wholly(open_rt: OpenRuntime) -> None:
    async with open_rt(**OFF) as rt, running(rt) as sweepers:
        await disagreeing(rt)
        await evolve(rt, "s", thing("d", valid_until="2020-01-01T00:00:00Z"))
        assert await sweepers.run_now() == {}
        assert not any(one.enabled for one in sweepers.status().values()) and len(sweepers.status()) == 3
        assert await rt.conflicts.count_open() == {}
        assert not [one for one in rt.bus.stats() if one.name == "sweepers"]
        with pytest.raises(InvalidParameter):
            await sweepers.run_now("inference")


async def test_stopping_ends_the_services_and_starting_begins_again(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt, rt.bus.subscribe(ConflictRaised) as events:
        sweepers = SweeperTeam.standard(rt)
        sweepers.start()
        await anyio.wait_all_tasks_blocked()
        sweepers.stop()
        await anyio.wait_all_tasks_blocked()
        assert not [one for one in rt.bus.stats() if one.name == "sweepers"]
        await disagreeing(rt)
        await anyio.wait_all_tasks_blocked()
        assert len(events) == 0
        sweepers.start()
        with anyio.fail_after(20):
            assert (await events.receive()).session_id == "s"
        sweepers.stop()


async def test_a_sweep_that_fails_is_tried_again(
    open_rt: OpenRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(team, "RETRY_S", 0)

    class Failing(InferenceStalenessSweeper):
        failures = 3

        async def sweep(self) -> SweepReport:
            if self.failures:
                self.failures -= 1
                raise StoreFull("no space")
            return await super().sweep()

    async with open_rt(**OFF) as rt, rt.bus.subscribe(ConflictRaised) as events:
        await disagreeing(rt)
        sweepers = SweeperTeam(rt, [Failing(rt, 300)])
        with caplog.at_level(logging.ERROR):
            sweepers.start()
            with anyio.fail_after(20):
                await events.receive()
        assert caplog.text.count("no space") == 3
        sweepers.stop()


def test_two_sweepers_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rt: Any = None
    with pytest.raises(ValueError, match="one name"):
        SweeperTeam(rt, [InferenceStalenessSweeper(rt, 1), InferenceStalenessSweeper(rt, 2)])
