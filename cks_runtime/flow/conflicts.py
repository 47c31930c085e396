"""Conflict records: raised, refreshed and closed by comparing what a rule finds with what stands open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from cks_runtime.flow.sheet import Sheet
from cks_runtime.model.claims import Finding
from cks_runtime.model.events import (
    ConflictRaised,
    Event,
    GossipConflictDetected,
    InferenceConflictDetected,
    TemporalConflictDetected,
    VerificationExpired,
)
from cks_runtime.store import conflicts as rows
from cks_runtime.store.conflicts import ClaimRow, RecordRow
from cks_runtime.store.ports import Store, Unit


@dataclass(frozen=True, slots=True)
class ConflictKind:
    """A sort of conflict: the task its resolvers claim and the event that tells it.

    `grouped`: one check's new claims become one record; otherwise each claim has a record of its own.
    """

    name: str
    task_type: str
    event: Callable[[RecordRow], Event]
    grouped: bool = False


def raised(event: type[ConflictRaised]) -> Callable[[RecordRow], Event]:
    """How a record becomes an event of this class: its own fields, and those of its body that the class has."""

    def make(record: RecordRow) -> Event:
        ids = record.body["object_ids"]
        assert isinstance(ids, list)
        fields = {
            **record.body,
            "object_id": ids[0] if ids else "",
            "at_ms": record.detected_at_ms,
            "session_id": record.session_id,
            "record_id": record.record_id,
            "occurrence": record.occurrence,
            "version_id": record.version_id,
            "kind": event.KIND,  # a gossip record's body has a kind of its own
        }
        return event.model_validate(fields)

    return make


KINDS: dict[str, ConflictKind] = {
    kind.name: kind
    for kind in (
        ConflictKind("gossip", "gossip_conflict", raised(GossipConflictDetected)),
        ConflictKind("inference", "inference_conflict", raised(InferenceConflictDetected), grouped=True),
        ConflictKind("temporal", "temporal_conflict", raised(TemporalConflictDetected)),
        ConflictKind("provenance", "provenance_conflict", raised(VerificationExpired)),
    )
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one comparison changed: events to be told after the commit, and how many records were raised."""

    events: tuple[Event, ...] = ()
    raised: int = 0


def at_once(session_id: str, now_ms: int) -> int:
    """When a session's new task is due where no other replica may be nearer: now."""
    return now_ms


class Conflicts:
    """Reads records, and reconciles them with what the rules find now.

    `task_due` tells when a session's new task is due (epoch ms); gossip sets it, so that of several replicas that
    hold a conflict one works on it first.
    """

    def __init__(self, store: Store, kinds: Mapping[str, ConflictKind]) -> None:
        self._store = store
        self.kinds = dict(kinds)
        self.task_due: Callable[[str, int], int] = at_once

    def _sheet(self, unit: Unit, kind: str, session_id: str, version_id: str, now_ms: int) -> Sheet:
        due_ms = self.task_due(session_id, now_ms)
        return Sheet(
            unit=unit,
            kind=kind,
            task_type=self.kinds[kind].task_type if self._store.has_outbox else None,
            event=self.kinds[kind].event,
            grouped=self.kinds[kind].grouped,
            session_id=session_id,
            version_id=version_id,
            now_ms=now_ms,
            due_ms=due_ms,
        )

    async def get(self, record_id: str) -> RecordRow | None:
        """One record, whatever its state."""
        async with self._store.reader() as reader:
            return await rows.get_record(reader, record_id)

    async def page(
        self, kind: str, state: str, session_id: str | None = None, after: int = 0, limit: int = 50
    ) -> list[RecordRow]:
        """Records of a kind by notice number; `state` is `queued`, `open` or `closed`."""
        async with self._store.reader() as reader:
            return await rows.page_records(reader, kind, state, session_id, after, limit)

    async def of_session(self, session_id: str, limit: int = 100) -> list[RecordRow]:
        """Open records of one session, of every kind, oldest first."""
        async with self._store.reader() as reader:
            return await rows.session_records(reader, session_id, limit)

    async def count(self, kind: str, state: str, session_id: str | None = None, after: int = 0) -> int:
        """How many records `page` has after notice number `after`."""
        async with self._store.reader() as reader:
            return await rows.count_records(reader, kind, state, session_id, after)

    async def count_open(self, session_id: str | None = None) -> dict[str, int]:
        """Open records by kind, of one session or of all."""
        async with self._store.reader() as reader:
            return await rows.count_open(reader, session_id)

    async def reconcile(
        self,
        unit: Unit,
        kind: str,
        session_id: str,
        version_id: str,
        findings: Sequence[Finding],
        anchors: Collection[str] | None,
        now_ms: int,
        gone_how: Callable[[ClaimRow], str] = lambda _: "cause_gone",
    ) -> Outcome:
        """Make the open claims at `anchors` (None: everywhere) equal to `findings`, inside the caller's unit.

        New claims raise records with notice, task and event; claims no longer found close, and a record with its
        last one; what is found again is refreshed without a second notice. `gone_how` says how a claim ended that
        no other took the place of.
        """
        if anchors is not None and not anchors:
            return Outcome()
        sheet = self._sheet(unit, kind, session_id, version_id, now_ms)
        known = {
            row.claim: row
            for row in await rows.open_claims(
                unit, kind, session_id, None if anchors is None else sorted(anchors)
            )
        }
        found = {finding.claim(session_id): finding for finding in findings}
        fresh = {claim: finding for claim, finding in found.items() if claim not in known}
        gone = [row for claim, row in known.items() if claim not in found]
        await sheet.refresh([known[claim] for claim in found if claim in known], found)
        await sheet.close(gone, {finding.anchor for finding in fresh.values()}, gone_how)
        raised = await sheet.open(fresh)
        return Outcome(tuple(sheet.events), raised)

    async def close_where(
        self,
        unit: Unit,
        kind: str,
        session_id: str,
        version_id: str,
        gone: Callable[[ClaimRow], bool],
        how: str,
        now_ms: int,
    ) -> list[Event]:
        """Close the open claims for which `gone` says so, and each record with its last one; the events."""
        standing = await rows.open_claims(unit, kind, session_id, None)
        sheet = self._sheet(unit, kind, session_id, version_id, now_ms)
        await sheet.close([row for row in standing if gone(row)], (), lambda _: how)
        return sheet.events

    async def acknowledge(
        self, unit: Unit, kind: str, session_id: str, version_id: str, finding: Finding, now_ms: int
    ) -> tuple[str, list[Event]]:
        """Close this finding's own record as acknowledged, so that it is not raised again; its id and the events.

        Raised or not yet: the record is made where the sweep has not come by.
        """
        sheet = self._sheet(unit, kind, session_id, version_id, now_ms)
        claim = finding.claim(session_id)
        return await sheet.acknowledge(claim, finding), sheet.events
