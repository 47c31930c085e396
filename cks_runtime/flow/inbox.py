"""Conflict inboxes: one queue of notices a kind, fed by the bus, decided by the table."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from cks_runtime.flow.bus import EventBus, Subscription
from cks_runtime.flow.clock import Clock
from cks_runtime.model.errors import CksError, DamagedBlob
from cks_runtime.model.events import ConflictClosed, ConflictRaised, Event
from cks_runtime.store import conflicts as rows
from cks_runtime.store.conflicts import RecordRow
from cks_runtime.store.ports import Store

_log = logging.getLogger(__name__)

INBOX_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Notices:
    """One answer of an inbox: records oldest first, and how many notices are left after it."""

    records: tuple[RecordRow, ...]
    remaining: int


class ConflictInbox:
    """Notices of one kind of conflict.

    Memory holds at most `INBOX_MAX` ids, to wake readers; when it is full, what other processes drained is
    forgotten, then the oldest ids, which `dropped` counts. Who gets a notice is decided by the table alone, so each
    goes to at most one caller in any process, and what memory forgot is still read from there.
    """

    def __init__(self, store: Store, kind: str, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.kind = kind
        self.dropped = 0
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._wake = anyio.Event()

    def subscribe(self, bus: EventBus, event_kind: type[Event]) -> Subscription:
        """The subscription that `feed` follows."""
        return bus.subscribe(event_kind, ConflictClosed, capacity=INBOX_MAX, name=f"inbox-{self.kind}")

    async def refill(self) -> None:
        """At start: take up what nobody has drained."""
        try:
            async with self._store.reader() as reader:
                waiting, _ = await rows.count_queued(reader, self.kind)
                newest = await rows.newest_queued(reader, self.kind, INBOX_MAX)
        except DamagedBlob as error:
            # whoever asks for the notices is told; all that does not need them works
            _log.error("the inbox %s could not be read: %s", self.kind, error.message)
            return
        for record_id in reversed(newest):
            self._add(record_id)
        self.dropped += max(0, waiting - INBOX_MAX)

    async def feed(self, events: Subscription) -> None:
        """Service: follow the bus."""
        async with events:
            async for event in events:
                if isinstance(event, ConflictRaised):
                    self._add(event.record_id)
                    if len(self._ids) > INBOX_MAX:
                        await self._shrink()
                elif isinstance(event, ConflictClosed):
                    self._ids.pop(event.record_id, None)

    def _add(self, record_id: str) -> None:
        self._ids[record_id] = None
        self._wake.set()

    async def _shrink(self) -> None:
        """Forget what others drained, then the oldest: a tenth more than needed, so that this is rare."""
        try:
            async with self._store.reader() as reader:
                waiting = set(await rows.newest_queued(reader, self.kind, INBOX_MAX))
        except CksError as error:
            _log.warning("the inbox %s could not be read: %s", self.kind, error.message)
            waiting = set(self._ids)
        self._ids = OrderedDict((id, None) for id in self._ids if id in waiting)
        if len(self._ids) < INBOX_MAX:
            return
        while len(self._ids) > INBOX_MAX * 9 // 10:
            self._ids.popitem(last=False)
            self.dropped += 1

    async def wait(self) -> None:
        """Until a notice is known to wait; it may be drained by another before the caller asks for it."""
        while not self._ids:
            if self._wake.is_set():
                self._wake = anyio.Event()
            await self._wake.wait()

    async def peek(self, session_id: str | None = None, after: int = 0, limit: int = 50) -> Notices:
        """Read waiting notices after notice number `after` and leave them on the queue."""
        async with self._store.reader() as reader:
            records = await rows.page_records(reader, self.kind, "queued", session_id, after, limit)
            if not records:
                return Notices((), 0)
            remaining, _ = await rows.count_queued(reader, self.kind, session_id, records[-1].notice_no)
        return Notices(tuple(records), remaining)

    async def drain(self, session_id: str | None = None, limit: int = 50) -> Notices:
        """Take the oldest notices off the queue. The records stay open, and their tasks claimable."""
        while True:
            known = list(self._ids)
            async with self._store.reader() as reader:
                waiting = await rows.page_records(reader, self.kind, "queued", session_id, 0, limit)
            if not waiting and session_id is None:
                for record_id in known:
                    self._ids.pop(record_id, None)
            taken = await self.take(waiting, session_id)
            if taken.records or not waiting:
                return taken  # else others were faster with all of these: look again

    async def take(
        self, waiting: Sequence[RecordRow], session_id: str | None = None, after: int = 0
    ) -> Notices:
        """Take exactly these notices off the queue, as far as nobody else has; `remaining` counts from `after` on."""
        if not waiting:
            return Notices((), 0)
        async with self._store.unit() as unit:
            taken = await rows.drain_records(unit, [record.record_id for record in waiting], self._clock())
            remaining, _ = await rows.count_queued(unit, self.kind, session_id, after)
        for record in taken:
            self._ids.pop(record.record_id, None)
        return Notices(tuple(taken), remaining)

    async def depth(self) -> tuple[int, int | None]:
        """How many notices wait, and when the oldest was detected (epoch ms)."""
        async with self._store.reader() as reader:
            return await rows.count_queued(reader, self.kind)
