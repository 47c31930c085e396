"""The APScheduler interval behind every sweeper: a metronome that only pokes, so that no job can hang or fail."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

START_DELAY_S = 1.0  # the scheduler's import must not slow down a server's first answer


class Metronome:
    """Calls `poke` every `interval_s` seconds for each beat that was added. Needs asyncio."""

    def __init__(self) -> None:
        self._beats: dict[str, tuple[float, Callable[[], None]]] = {}
        self._scheduler: Any = None

    def add(self, name: str, interval_s: float, poke: Callable[[], None]) -> None:
        """Register a beat; takes effect at `start`."""
        self._beats[name] = (interval_s, poke)

    def start(self) -> None:
        """Begin to beat on the running event loop."""
        from apscheduler.schedulers.asyncio import AsyncIOScheduler

        # coalesce and no grace time: late beats become one, and none is dropped
        self._scheduler = AsyncIOScheduler(
            timezone=UTC, job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None}
        )
        for name, (interval_s, poke) in self._beats.items():
            self._scheduler.add_job(_beat(poke), "interval", seconds=interval_s, id=name)
        self._scheduler.start()

    def next_beat(self, name: str) -> datetime | None:
        """When a beat comes next; None before `start`."""
        job = self._scheduler.get_job(name) if self._scheduler is not None else None
        return job.next_run_time if job is not None else None

    def stop(self) -> None:
        """End all beats; safe to call twice."""
        if self._scheduler is not None:
            scheduler, self._scheduler = self._scheduler, None
            scheduler.shutdown(wait=False)


def _beat(poke: Callable[[], None]) -> Callable[[], Any]:
    async def beat() -> None:
        # a coroutine function runs on the event loop; a plain one would run in a thread
        poke()

    return beat
