"""The sweepers of one process: woken by commits, by the next due time and by the metronome."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from cks_runtime.flow.bus import Subscription
from cks_runtime.model.errors import CksError, InvalidParameter
from cks_runtime.model.events import HeadMoved, SessionCreated
from cks_runtime.runtime import Runtime
from sweepers.base import StalenessSweeper, SweepReport
from sweepers.dated import ProvenanceStalenessSweeper, TemporalStalenessSweeper
from sweepers.inference import InferenceStalenessSweeper
from sweepers.metronome import START_DELAY_S, Metronome

DEBOUNCE_S = 0.1
RETRY_S = 2.0
ALARM_MAX_S = 60.0  # a longer alarm is set again: the wall clock may have jumped meanwhile

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweeperStatus:
    """`found` counts records this process raised; times in epoch ms; None: not known or never."""

    enabled: bool
    interval_s: float | None
    last_run_ms: int | None = None
    next_run_ms: int | None = None
    found: int = 0


class _Member:
    """A sweeper and the bell that wakes it: however often it rang, one sweep answers."""

    def __init__(self, sweeper: StalenessSweeper) -> None:
        self.sweeper = sweeper
        self._bell = anyio.Event()

    def wake(self) -> None:
        self._bell.set()

    async def woken(self) -> None:
        await self._bell.wait()
        # what rings while the sweep gathers and runs may be too late for it, and rings for the next
        self._bell = anyio.Event()


class SweeperTeam:
    """Runs sweepers as services of a runtime: `team = SweeperTeam.standard(rt); team.start()`.

    A sweeper without an interval is off wholly. Without the metronome only latency changes, never a result.
    """

    def __init__(self, rt: Runtime, sweepers: Sequence[StalenessSweeper]) -> None:
        self._rt = rt
        self._off = tuple(sweeper.name for sweeper in sweepers if sweeper.interval_s is None)
        self._members = {
            sweeper.name: _Member(sweeper) for sweeper in sweepers if sweeper.interval_s is not None
        }
        if len(self._members) + len(self._off) < len(sweepers):
            raise ValueError("two sweepers have one name")
        self._metronome = Metronome()
        self._scope = anyio.CancelScope()

    @classmethod
    def standard(cls, rt: Runtime, further: Sequence[StalenessSweeper] = ()) -> SweeperTeam:
        """The three sweepers as the runtime's settings say, and further ones."""
        config = rt.config
        return cls(
            rt,
            [
                InferenceStalenessSweeper(rt, config.inference_sweep_interval),
                ProvenanceStalenessSweeper(
                    rt, config.provenance_sweep_interval, config.provenance_ttl_seconds
                ),
                TemporalStalenessSweeper(rt, config.temporal_sweep_interval),
                *further,
            ],
        )

    def start(self) -> None:
        """Start every sweeper in the runtime's task group; the first sweep begins at once."""
        self._scope = anyio.CancelScope()
        if self._members:
            events = self._rt.bus.subscribe(HeadMoved, SessionCreated, capacity=64, name="sweepers")
            self._rt.run([lambda: self._serve(events)])

    def stop(self) -> None:
        """End the sweepers; what they found stays."""
        self._scope.cancel()

    def poke(self) -> None:
        """Let every sweeper run soon."""
        for member in self._members.values():
            member.wake()

    async def run_now(self, name: str | None = None) -> dict[str, SweepReport]:
        """Sweep now and wait for the result: one sweeper by name, or all. Raises InvalidParameter for one not on."""
        if name is not None and name not in self._members:
            raise InvalidParameter(
                f"No sweeper {name!r} is on.", f"On are: {', '.join(self._members) or 'none'}."
            )
        members = [self._members[name]] if name is not None else list(self._members.values())
        return {member.sweeper.name: await member.sweeper.sweep() for member in members}

    def status(self) -> dict[str, SweeperStatus]:
        """Every sweeper's state, those that are off included."""
        found = {name: SweeperStatus(enabled=False, interval_s=None) for name in self._off}
        for name, member in self._members.items():
            beat = self._metronome.next_beat(name)
            found[name] = SweeperStatus(
                enabled=True,
                interval_s=member.sweeper.interval_s,
                last_run_ms=member.sweeper.last_run_ms,
                next_run_ms=int(beat.timestamp() * 1000) if beat is not None else None,
                found=member.sweeper.found,
            )
        return found

    async def _serve(self, events: Subscription) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    for member in self._members.values():
                        tasks.start_soon(self._run, member)
                    tasks.start_soon(self._follow, events)
                    await anyio.sleep(START_DELAY_S)
                    for name, member in self._members.items():
                        assert member.sweeper.interval_s is not None, "a sweeper that is off is no member"
                        self._metronome.add(name, member.sweeper.interval_s, member.wake)
                    self._metronome.start()
        finally:
            self._metronome.stop()

    async def _follow(self, events: Subscription) -> None:
        async with events:
            async for _ in events:
                self.poke()

    async def _run(self, member: _Member) -> None:
        sweeper = member.sweeper
        while True:
            try:
                report = await sweeper.sweep()
                if report.raised:
                    _log.info("sweeper %s raised %d conflicts", sweeper.name, report.raised)
                due_ms = await sweeper.due_in_ms(self._rt.clock())
            except CksError as error:
                # a full disk or a damaged object must not end the service: the next sweep finds what is left
                _log.error("sweeper %s failed: %s", sweeper.name, error.message)
                await anyio.sleep(RETRY_S)
                continue
            alarm_s = ALARM_MAX_S if due_ms is None else min(ALARM_MAX_S, due_ms / 1000)
            with anyio.move_on_after(alarm_s):
                await member.woken()
                await anyio.sleep(DEBOUNCE_S)
