"""The base of every sweeper: looks at what moved since its durable cursor, and at what fell due."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import anyio

from cks_runtime.flow.conflicts import Outcome
from cks_runtime.flow.graphs import in_worker
from cks_runtime.model.canon import Hash
from cks_runtime.model.claims import Finding
from cks_runtime.model.errors import CksError, DamagedBlob
from cks_runtime.model.graph import Graph, changes
from cks_runtime.model.knowledge import KObject
from cks_runtime.runtime import Runtime
from cks_runtime.store import sessions, sweeps
from cks_runtime.store.ports import Unit
from cks_runtime.store.sessions import SessionRow
from cks_runtime.store.sweeps import SweepRow

LEASE_MS = 15_000
LEASE_WAIT_S = 0.5  # a sweeper that does not get the lease waits this long, then works all the same
PAGE = 100
CHUNK = 500  # anchors one transaction judges: some 50 ms of the write lock

log = logging.getLogger(__name__)

Changes = Sequence[tuple[str, KObject | None, KObject | None]]


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did: sessions and due rows looked at, records raised, and how long it took."""

    sessions: int = 0
    due_rows: int = 0
    raised: int = 0
    took_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Look:
    """A session's change since the sweeper's mark: from `seen` (None: never) to its present head.

    `changed` leaves out objects that cannot be read: nothing is known of them. `fork` is the graph a branch began at.
    """

    row: SessionRow
    seen: Hash | None
    after: Graph
    changed: Changes
    fork: Graph | None


class StalenessSweeper(ABC):
    """One rule over all sessions.

    A further sweeper names itself and its conflict kind, and says where a change can matter (`anchors`) and what
    stands there (`findings`); both must depend on nothing but their arguments. Sweepers of several processes may
    run at once: marks move by compare-and-swap in the transaction that raises, so nothing is raised twice.
    """

    name: ClassVar[str]
    kind: ClassVar[str]

    def __init__(self, rt: Runtime, interval_s: float | None) -> None:
        self.rt = rt
        self.interval_s = interval_s
        self.last_run_ms: int | None = None
        self.found = 0

    @abstractmethod
    def anchors(self, changed: Changes, after: Graph) -> set[str]:
        """Where the rule may answer differently after this change."""

    @abstractmethod
    def findings(self, graph: Graph, anchors: Collection[str], now_ms: int) -> list[Finding]:
        """What the rule finds at these places."""

    async def sweep_due(self, row: SweepRow, now_ms: int) -> SweepReport:
        """Look at what fell due by `now_ms`; a rule without dates has nothing to do."""
        return SweepReport()

    async def due_in_ms(self, now_ms: int) -> int | None:
        """How long until something falls due; None for never."""
        return None

    def evaluation_ms(self, row: SweepRow, now_ms: int) -> int:
        """The time to judge a change by: not earlier than what `sweep_due` already passed."""
        return now_ms

    async def has_work(self, now_ms: int) -> bool:
        """Whether a sweep now would look at anything."""
        async with self.rt.store.reader() as reader:
            row = await sweeps.get_sweep(reader, self.name)
            return bool(await sessions.moved_sessions(reader, row.cursor_seq, 1))

    async def sweep(self) -> SweepReport:
        """One whole sweep, now. Costs what changed or fell due, not how many sessions there are."""
        began = anyio.current_time()
        now_ms = self.rt.clock()
        report = SweepReport()
        if await self.has_work(now_ms):
            await self._borrow_lease()
            try:
                report = await self._look_at_all(now_ms)
            except BaseException:
                # cancelled or failed: nobody is to wait for this process, which may be on its way out
                with anyio.move_on_after(LEASE_WAIT_S, shield=True), suppress(CksError):
                    await self._return_lease()
                raise
        self.last_run_ms = now_ms
        self.found += report.raised
        return replace(report, took_ms=(anyio.current_time() - began) * 1000)

    async def _look_at_all(self, now_ms: int) -> SweepReport:
        moved = await self._sweep_moved(now_ms)
        async with self.rt.store.reader() as reader:
            row = await sweeps.get_sweep(reader, self.name)
        due = await self.sweep_due(row, now_ms)
        report = SweepReport(moved.sessions, due.due_rows, moved.raised + due.raised)
        await self._finish(now_ms, report.raised)
        return report

    async def _borrow_lease(self) -> None:
        # the lease only saves double work: whoever does not get it lets the holder go first, then looks again
        if not await self._take_lease():
            await anyio.sleep(LEASE_WAIT_S)

    async def _take_lease(self) -> bool:
        clock = await self.rt.store.lease_clock()
        async with self.rt.store.unit() as unit:
            return await sweeps.take_lease(unit, f"sweep:{self.name}", self.rt.instance_id, LEASE_MS, clock)

    async def _return_lease(self) -> None:
        async with self.rt.store.unit() as unit:
            await sweeps.release_lease(unit, f"sweep:{self.name}", self.rt.instance_id)

    async def _finish(self, now_ms: int, raised: int) -> None:
        async with self.rt.store.unit() as unit:
            row = await sweeps.get_sweep(unit, self.name)
            await sweeps.put_sweep(unit, replace(row, last_run_ms=now_ms, last_found=row.last_found + raised))
            await sweeps.release_lease(unit, f"sweep:{self.name}", self.rt.instance_id)

    async def _sweep_moved(self, now_ms: int) -> SweepReport:
        looked = raised = 0
        while True:
            async with self.rt.store.reader() as reader:
                cursor = (await sweeps.get_sweep(reader, self.name)).cursor_seq
                page = await sessions.moved_sessions(reader, cursor, PAGE)
            for row in page:
                try:
                    raised += await self._sweep_session(row, now_ms)
                except DamagedBlob as error:
                    # one damaged session must not hold up the others; it is looked at again when it moves
                    log.error("session %s cannot be swept: %s", row.session_id, error.message)
                looked += 1
            if not page:
                return SweepReport(sessions=looked, raised=raised)
            await self._advance_cursor(page[-1].moved_seq)

    async def _advance_cursor(self, seq: int) -> None:
        async with self.rt.store.unit() as unit:
            row = await sweeps.get_sweep(unit, self.name)
            if row.cursor_seq < seq:
                await sweeps.put_sweep(unit, replace(row, cursor_seq=seq))

    async def _sweep_session(self, row: SessionRow, now_ms: int) -> int:
        look = await self._look(row)
        if look is None:
            return 0
        anchors = sorted(await in_worker(lambda: self.anchors(look.changed, look.after)))
        raised = 0
        for chunk in self._chunks(anchors):
            outcome = await self._raise_at(look, chunk, now_ms, last=chunk[-1:] == anchors[-1:])
            if outcome is None:
                break  # another sweeper was faster, and has looked at all of it
            await self.rt.journal.told(outcome.events)
            raised += outcome.raised
        return raised

    def _chunks(self, anchors: list[str]) -> list[list[str]]:
        """What one transaction judges: all that makes one record, else so much that other writers get their turn."""
        if self.rt.conflicts.kinds[self.kind].grouped or not anchors:
            return [anchors]
        return [anchors[start : start + CHUNK] for start in range(0, len(anchors), CHUNK)]

    async def _raise_at(self, look: Look, anchors: list[str], now_ms: int, last: bool) -> Outcome | None:
        """Reconcile the claims at these places; the last ones move the mark. None when the mark was moved already."""
        found = await in_worker(lambda: self._own_findings(look, anchors, now_ms))
        row = look.row
        async with self.rt.store.unit() as unit:
            if await sweeps.get_mark(unit, self.name, row.session_id) != look.seen:
                return None
            judged_ms = self.evaluation_ms(await sweeps.get_sweep(unit, self.name), now_ms)
            if judged_ms != now_ms:
                found = self._own_findings(look, anchors, judged_ms)
            if last:
                await sweeps.swap_mark(unit, self.name, row.session_id, look.seen, row.head)
            return await self.reconcile(unit, row, found, anchors)

    def _own_findings(self, look: Look, anchors: list[str], now_ms: int) -> list[Finding]:
        """What the rule finds; what it finds at the fork point already belongs to the parent session."""
        found = self.findings(look.after, anchors, now_ms)
        if look.fork is None or not found:
            return found
        session_id = look.row.session_id
        inherited = {finding.claim(session_id) for finding in self.findings(look.fork, anchors, now_ms)}
        return [finding for finding in found if finding.claim(session_id) not in inherited]

    async def _look(self, row: SessionRow) -> Look | None:
        async with self.rt.store.reader() as reader:
            seen = await sweeps.get_mark(reader, self.name, row.session_id)
        start = seen if seen is not None else row.fork_version
        if seen == row.head:
            return None
        after = await self.rt.graphs.graph(row.root)
        before = await self._graph_of(start, after)
        changed = [
            change
            for change in await in_worker(lambda: changes(before, after))
            if change[0] not in after.damaged
        ]
        fork = await self._graph_of(row.fork_version, after) if row.fork_session and changed else None
        return Look(row, seen, after, changed, fork)

    async def _graph_of(self, version_id: Hash, like: Graph) -> Graph:
        version = await self.rt.graphs.version(version_id)
        return await self.rt.graphs.graph(version.root, like=like)

    async def reconcile(
        self, unit: Unit, row: SessionRow, found: Sequence[Finding], anchors: Collection[str]
    ) -> Outcome:
        """Make the session's open claims at `anchors` equal to what was found."""
        return await self.rt.conflicts.reconcile(
            unit, self.kind, row.session_id, row.head.hex(), found, anchors, self.rt.clock()
        )
