"""Facts past their date and sources checked too long ago: found through an index of due times, never a rescan."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from cks_runtime.flow.graphs import drive
from cks_runtime.model.canon import Hash
from cks_runtime.model.claims import Finding, dated_finding
from cks_runtime.model.errors import DamagedBlob
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.holders import holders
from cks_runtime.model.knowledge import KObject, object_from_blob
from cks_runtime.model.validity import provenance, temporal
from cks_runtime.runtime import Runtime
from cks_runtime.store import conflicts as records
from cks_runtime.store import sessions, sweeps
from cks_runtime.store.sessions import SessionRow
from cks_runtime.store.sweeps import DueKind, SweepRow
from sweepers.base import Changes, StalenessSweeper, SweepReport

DUE_PAGE = 500

log = logging.getLogger(__name__)

Held = tuple[int, Hash, str]  # due time in ms, object hash, object id


class DatedSweeper(StalenessSweeper):
    """A rule about single objects that fall due `offset_ms` after a time that is written in them."""

    due_kind: ClassVar[DueKind]
    offset_ms: int = 0

    @abstractmethod
    def finding(self, obj: KObject, now_ms: int) -> Finding | None:
        """What the rule finds in this object at `now_ms`."""

    def anchors(self, changed: Changes, after: Graph) -> set[str]:
        return {id for id, _, _ in changed}

    def findings(self, graph: Graph, anchors: Collection[str], now_ms: int) -> list[Finding]:
        objects = (graph.readable(id) for id in anchors)
        return self._found((obj for obj in objects if obj is not None), now_ms)

    def config(self) -> str:
        """The settings that the due mark was made under; other ones start it anew."""
        return f"offset_ms={self.offset_ms}"

    def _upto_ms(self, now_ms: int) -> int:
        # due strictly before now
        return now_ms - self.offset_ms - 1

    def evaluation_ms(self, row: SweepRow, now_ms: int) -> int:
        if row.due_mark_ms is None or row.config != self.config():
            return now_ms
        return max(now_ms, row.due_mark_ms + self.offset_ms + 1)

    async def has_work(self, now_ms: int) -> bool:
        async with self.rt.store.reader() as reader:
            row = await sweeps.get_sweep(reader, self.name)
            if row.config != self.config() or await sessions.moved_sessions(reader, row.cursor_seq, 1):
                return True
            due = await sweeps.next_due(reader, self.due_kind, row.due_mark_ms)
        return due is not None and due <= self._upto_ms(now_ms)

    async def due_in_ms(self, now_ms: int) -> int | None:
        async with self.rt.store.reader() as reader:
            row = await sweeps.get_sweep(reader, self.name)
            due = await sweeps.next_due(reader, self.due_kind, row.due_mark_ms)
        return None if due is None else max(0, due - self._upto_ms(now_ms))

    async def sweep_due(self, row: SweepRow, now_ms: int) -> SweepReport:
        raised = looked = 0
        if row.config != self.config():
            await self._recheck_open(now_ms)
            row = replace(row, due_mark_ms=None, config=self.config())
        upto_ms = self._upto_ms(now_ms)
        mark = row.due_mark_ms
        while True:
            async with self.rt.store.reader() as reader:
                page = await sweeps.due_between(reader, self.due_kind, mark, upto_ms, DUE_PAGE)
            raised += await self._raise_held(page, now_ms)
            looked += len(page)
            last = page[-1][0] if len(page) >= DUE_PAGE else upto_ms
            if await self._mark(mark, last, len(page)):
                mark = last
                if last == upto_ms:
                    return SweepReport(due_rows=looked, raised=raised)

    async def _mark(self, after_ms: int | None, upto_ms: int, looked: int) -> bool:
        """Move the due mark; not when a commit added rows below it since they were read."""
        async with self.rt.store.unit() as unit:
            present = await sweeps.due_between(unit, self.due_kind, after_ms, upto_ms, looked + DUE_PAGE)
            if len(present) != looked:
                return False
            row = await sweeps.get_sweep(unit, self.name)
            known = row.due_mark_ms if row.config == self.config() else None
            mark = upto_ms if known is None else max(upto_ms, known)
            await sweeps.put_sweep(unit, replace(row, due_mark_ms=mark, config=self.config()))
        return True

    async def _raise_held(self, page: Sequence[Held], now_ms: int) -> int:
        if not page:
            return 0
        wanted: dict[str, set[Hash]] = defaultdict(set)
        for _, object_hash, object_id in page:
            wanted[object_id].add(object_hash)
        objects = await self._objects([object_hash for _, object_hash, _ in page])
        async with self.rt.store.reader() as reader:
            heads = await sessions.session_roots(reader)
        held = await self._held({root for _, _, root in heads}, wanted)
        raised = 0
        for session_id, _, root in heads:
            if held[root]:
                raised += await self._raise_in(session_id, wanted, objects, now_ms)
        return raised

    async def _held(
        self, roots: Collection[Hash], wanted: Mapping[str, Collection[Hash] | None]
    ) -> dict[Hash, dict[str, Hash]]:
        real = [root for root in roots if root != EMPTY_GRAPH.root]
        found: dict[Hash, dict[str, Hash]] = {root: {} for root in roots}
        try:
            found.update(await drive(holders(real, wanted), self.rt.graphs.blobs))
        except DamagedBlob:
            for root in real:  # one at a time, so that a damaged graph hides no other
                try:
                    found.update(await drive(holders([root], wanted), self.rt.graphs.blobs))
                except DamagedBlob as error:
                    log.error("a graph cannot be swept: %s", error.message)
        return found

    async def _objects(self, hashes: Sequence[Hash]) -> dict[Hash, KObject]:
        """The objects of these hashes that can be read."""
        found: dict[Hash, KObject] = {}
        for key in hashes:
            try:
                data = await self.rt.graphs.blobs([key])
                found[key] = object_from_blob(data.get(key, b""), key)
            except DamagedBlob as error:
                log.error("an object that fell due cannot be read: %s", error.message)
        return found

    async def _raise_in(
        self,
        session_id: str,
        wanted: Mapping[str, Collection[Hash]],
        objects: Mapping[Hash, KObject],
        now_ms: int,
    ) -> int:
        while True:
            async with self.rt.store.reader() as reader:
                row = await sessions.get_session(reader, session_id)
            assert row is not None, "sessions are never removed"
            held = (await self._held([row.root], wanted))[row.root]
            held = {id: value for id, value in held.items() if value in objects}
            found = self._found([objects[value] for value in held.values()], now_ms)
            inherited = await self._at_fork(row, held, now_ms) if found else set()
            async with self.rt.store.unit() as unit:
                now = await sessions.get_session(unit, session_id)
                if now is None or now.head != row.head:
                    continue  # judged on a head that is no longer there: look again
                own = [finding for finding in found if finding.claim(session_id) not in inherited]
                outcome = await self.reconcile(unit, row, own, list(held))
            await self.rt.journal.told(outcome.events)
            return outcome.raised

    def _found(self, objects: Iterable[KObject], now_ms: int) -> list[Finding]:
        found = (self.finding(obj, now_ms) for obj in objects)
        return [finding for finding in found if finding is not None]

    async def _at_fork(self, row: SessionRow, ids: Iterable[str], now_ms: int) -> set[Hash]:
        """The claims of these objects as they were at a branch's fork point: they belong to its parent."""
        if row.fork_session is None:
            return set()
        fork = await self.rt.graphs.version(row.fork_version)
        held = (await self._held([fork.root], dict.fromkeys(ids)))[fork.root]
        objects = await self._objects(list(held.values()))
        return {finding.claim(row.session_id) for finding in self._found(objects.values(), now_ms)}

    async def _recheck_open(self, now_ms: int) -> None:
        """After a change of settings: close what is no longer stale."""
        after = 0
        while True:
            page = await self.rt.conflicts.page(self.kind, "open", None, after, DUE_PAGE)
            for session_id in {record.session_id for record in page}:
                await self._recheck_session(session_id, now_ms)
            if not page:
                return
            after = page[-1].notice_no

    async def _recheck_session(self, session_id: str, now_ms: int) -> None:
        while True:
            row, graph = await self.rt.sessions.head(session_id)
            async with self.rt.store.unit() as unit:
                now = await sessions.get_session(unit, session_id)
                if now is None or now.head != row.head:
                    continue
                standing = await records.open_claims(unit, self.kind, session_id, None)
                anchors = [claim.anchor for claim in standing if claim.anchor not in graph.damaged]
                outcome = await self.reconcile(unit, row, self.findings(graph, anchors, now_ms), anchors)
            await self.rt.journal.told(outcome.events)
            return


class TemporalStalenessSweeper(DatedSweeper):
    """Objects past their `valid_until`."""

    name = "temporal"
    kind = "temporal"
    due_kind: ClassVar[DueKind] = "temporal"

    def finding(self, obj: KObject, now_ms: int) -> Finding | None:
        found = temporal(obj, now_ms)
        return None if found is None else dated_finding(self.kind, obj.id, found.extra["valid_until"], found)


class ProvenanceStalenessSweeper(DatedSweeper):
    """Verification records older than the time they are trusted for."""

    name = "provenance"
    kind = "provenance"
    due_kind: ClassVar[DueKind] = "provenance"

    def __init__(self, rt: Runtime, interval_s: float | None, ttl_s: float) -> None:
        super().__init__(rt, interval_s)
        self.ttl_ms = int(ttl_s * 1000)
        self.offset_ms = self.ttl_ms

    def finding(self, obj: KObject, now_ms: int) -> Finding | None:
        found = provenance(obj, now_ms, self.ttl_ms)
        return None if found is None else dated_finding(self.kind, obj.id, found.extra["checked_at"], found)
