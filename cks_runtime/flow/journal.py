"""The journal's live end: publishes stored events in their order, this process's and other processes' alike."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence

import anyio

from cks_runtime.flow.bus import EventBus
from cks_runtime.model.errors import CksError
from cks_runtime.model.events import Event
from cks_runtime.store import journal as rows
from cks_runtime.store.ports import Store

_log = logging.getLogger(__name__)

TAIL_INTERVAL_S = 0.2
PAGE = 500
SEQ_MAX = 2**63 - 1
RETENTION_MS = 30 * 24 * 3600 * 1000
RETENTION_MAX = 1_000_000
TRIM_DELAY_S = 60.0  # not at start, when everything else wants the disk
TRIM_INTERVAL_S = 3600.0


class Journal:
    """Replay of what happened, and the road from the journal to the bus.

    Events reach the bus only after their transaction committed, each once, in the order of their numbers.
    """

    def __init__(self, store: Store, bus: EventBus) -> None:
        self._store = store
        self._bus = bus
        self._lock = anyio.Lock()
        self.published = 0

    async def start(self) -> None:
        """Begin at the journal's end: what happened before is replayed on demand, not published."""
        async with self._store.reader() as reader:
            self.published = await rows.last_seq(reader)

    async def told(self, events: Sequence[Event]) -> None:
        """After a commit: publish up to its last event. Nothing is read when no other process wrote in between."""
        if not events or events[-1].seq <= self.published:
            return
        if events[0].seq == self.published + 1 and not self._lock.locked():
            self.published = events[-1].seq
            self._bus.publish(events)
            return
        try:
            await self.pump()
        except CksError:
            _log.warning(
                "journal.pump_failed", exc_info=True
            )  # committed all the same; the tail publishes it

    async def pump(self) -> int:
        """Publish every stored event that was not published yet; returns how many."""
        count = 0
        async with self._lock:
            while True:
                async with self._store.reader() as reader:
                    events = await rows.read_events(reader, self.published, PAGE)
                if not events:
                    return count
                fresh = [event for event in events if event.seq > self.published]
                if fresh:
                    self.published = fresh[-1].seq
                    self._bus.publish(fresh)
                    count += len(fresh)

    async def tail(self) -> None:
        """Service: publish what other processes on this database commit, at most 250 ms later."""
        while True:
            await anyio.sleep(TAIL_INTERVAL_S)
            try:
                await self.pump()
            except CksError:
                # a locked or full database must not end the service: the next round tries again
                _log.warning("events could not be read from the journal", exc_info=True)
                await anyio.sleep(1.0)

    async def trim(self, now_ms: int) -> int:
        """Remove events beyond the retention (30 days, 1,000,000 events); returns how many went."""
        total = 0
        while True:
            async with self._store.unit() as unit:
                gone = await rows.trim_events(unit, now_ms - RETENTION_MS, RETENTION_MAX, PAGE)
            total += gone
            if gone < PAGE:
                return total

    async def replay(self, since: int = 0, types: Sequence[type[Event]] = ()) -> AsyncIterator[Event]:
        """Stored events numbered above `since`, oldest first; the same ones in the same order every time."""
        names = [kind.KIND for kind in types]
        since = max(0, min(since, SEQ_MAX))
        while True:
            async with self._store.reader() as reader:
                events = await rows.read_events(reader, since, PAGE, names)
            for event in events:
                yield event
            if len(events) < PAGE:
                return
            since = events[-1].seq

    async def bounds(self) -> tuple[int, int]:
        """(oldest, newest) number kept; zeros for an empty journal."""
        async with self._store.reader() as reader:
            return await rows.first_seq(reader), await rows.last_seq(reader)
