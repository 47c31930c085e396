"""Conflict records: raised, refreshed and closed by comparing what a rule finds with what stands open."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cks_runtime.model.canon import Hash, Json
from cks_runtime.model.claims import Finding, record_id
from cks_runtime.model.events import (
    ConflictClosed,
    ConflictRaised,
    Event,
    GossipConflictDetected,
    InferenceConflictDetected,
    TemporalConflictDetected,
    VerificationExpired,
)
from cks_runtime.store import conflicts as rows
from cks_runtime.store import gossip, outbox
from cks_runtime.store.conflicts import ClaimRow, RecordRow
from cks_runtime.store.journal import append_events
from cks_runtime.store.ports import Store, Unit

ACKNOWLEDGED = "acknowledged"


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

    def _sheet(self, unit: Unit, kind: str, session_id: str, version_id: str, now_ms: int) -> _Sheet:
        due_ms = self.task_due(session_id, now_ms)
        outbox_on = self._store.has_outbox
        return _Sheet(unit, self.kinds[kind], session_id, version_id, now_ms, outbox_on, due_ms)

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


class _Sheet:
    """The writes of one comparison in one unit."""

    def __init__(
        self,
        unit: Unit,
        kind: ConflictKind,
        session_id: str,
        version_id: str,
        now_ms: int,
        outbox_on: bool,
        due_ms: int,
    ) -> None:
        self._unit = unit
        self._kind = kind
        self._session_id = session_id
        self._version_id = version_id
        self._now_ms = now_ms
        self._outbox_on = outbox_on
        self._due_ms = due_ms
        self.events: list[Event] = []

    async def refresh(self, standing: Sequence[ClaimRow], found: Mapping[Hash, Finding]) -> None:
        """Give claims that stand the values of today."""
        changed = [
            replace(row, body=found[row.claim].body())
            for row in standing
            if found[row.claim].body() != row.body
        ]
        await rows.put_claims(self._unit, changed)
        for record in sorted({row.record_id for row in changed}):
            await self._rewrite(record)

    async def close(
        self, gone: Sequence[ClaimRow], replaced_at: Collection[str], gone_how: Callable[[ClaimRow], str]
    ) -> None:
        """Close claims whose cause is gone, and each record with its last claim."""
        await rows.put_claims(self._unit, [replace(row, state="closed") for row in gone])
        for record in sorted({row.record_id for row in gone}):
            left = [row for row in await rows.record_claims(self._unit, record) if row.state == "open"]
            if left:
                await self._rewrite(record)
                continue
            own = [row for row in gone if row.record_id == record]
            replaced = any(row.anchor in replaced_at for row in own)
            await self._close_record(record, "replaced" if replaced else gone_how(own[0]))

    async def open(self, fresh: Mapping[Hash, Finding]) -> int:
        """Raise records for new claims; an acknowledged one stays closed."""
        if not fresh:
            return 0
        groups = (
            [dict(fresh)] if self._kind.grouped else [{claim: finding} for claim, finding in fresh.items()]
        )
        raised = 0
        for group in groups:
            name = record_id(group)
            before = await rows.get_record(self._unit, name)
            if before is not None and before.closed_how == ACKNOWLEDGED:
                continue
            await self._raise(name, before, group)
            raised += 1
        return raised

    async def acknowledge(self, claim: Hash, finding: Finding) -> str:
        """Close the record of one claim for good."""
        name = record_id([claim])
        before = await rows.get_record(self._unit, name)
        if before is None or before.state == "closed":
            if before is not None and before.closed_how == ACKNOWLEDGED:
                return name
            await self._raise(name, before, {claim: finding})
        kept = await rows.record_claims(self._unit, name)
        await rows.put_claims(self._unit, [replace(row, state="closed") for row in kept])
        await self._close_record(name, ACKNOWLEDGED)
        return name

    async def _raise(self, name: str, before: RecordRow | None, group: Mapping[Hash, Finding]) -> None:
        record = RecordRow(
            record_id=name,
            kind=self._kind.name,
            session_id=self._session_id,
            state="open",
            occurrence=1 if before is None else before.occurrence + 1,
            notice_no=0,
            detected_at_ms=self._now_ms,
            updated_at_ms=self._now_ms,
            version_id=self._version_id,
            body=_body(finding.body() for finding in group.values()),
            drained_at_ms=None,
            closed_at_ms=None,
            closed_how=None,
        )
        (event,) = await append_events(self._unit, [self._kind.event(record)])
        self.events.append(event)
        await rows.put_record(self._unit, replace(record, notice_no=event.seq))
        claims = [
            ClaimRow(claim, self._kind.name, self._session_id, finding.anchor, name, "open", finding.body())
            for claim, finding in group.items()
        ]
        await rows.put_claims(self._unit, claims)
        if self._outbox_on:
            await outbox.put_task(
                self._unit,
                f"task-{secrets.token_hex(8)}",
                self._kind.task_type,
                self._session_id,
                task_payload(record),
                name,
                self._now_ms,
            )
            if self._due_ms > self._now_ms:
                await gossip.postpone_task(self._unit, name, self._due_ms)

    async def _rewrite(self, name: str) -> None:
        before = await rows.get_record(self._unit, name)
        assert before is not None, "a claim names a record that does not exist"
        left = [row.body for row in await rows.record_claims(self._unit, name) if row.state == "open"]
        record = replace(before, version_id=self._version_id, body=_body(left), updated_at_ms=self._now_ms)
        await rows.put_record(self._unit, record)
        if self._outbox_on:
            await outbox.refresh_payloads(self._unit, {name: task_payload(record)})

    async def _close_record(self, name: str, how: str) -> None:
        before = await rows.get_record(self._unit, name)
        assert before is not None, "a claim names a record that does not exist"
        if before.state == "closed":
            return
        closed = ConflictClosed(
            at_ms=self._now_ms,
            session_id=before.session_id,
            record_id=name,
            conflict_kind=before.kind,
            occurrence=before.occurrence,
            how=how,
        )
        self.events += await append_events(self._unit, [closed])
        await rows.put_record(
            self._unit,
            replace(
                before,
                state="closed",
                closed_at_ms=self._now_ms,
                closed_how=how,
                updated_at_ms=self._now_ms,
                version_id=self._version_id,
            ),
        )
        if self._outbox_on:
            await outbox.remove_tasks(self._unit, [name])


def task_payload(record: RecordRow) -> dict[str, Json]:
    """What a resolver needs to know: the conflict, its session, version, objects and diagnostics."""
    return {
        **record.body,
        "record_id": record.record_id,
        "kind": record.kind,
        "occurrence": record.occurrence,
        "session_id": record.session_id,
        "version_id": record.version_id,
    }


def _body(claims: Iterable[dict[str, Json]]) -> dict[str, Json]:
    """The record's part of its claims: diagnostics by place, every object once, and what else a claim tells."""
    diagnostics: list[dict[str, Json]] = []
    ids: dict[Json, None] = {}
    more: dict[str, Json] = {}
    for body in claims:
        object_ids = body["object_ids"]
        assert isinstance(object_ids, list)
        ids.update(dict.fromkeys(object_ids))
        if isinstance(diagnostic := body.get("diagnostic"), dict):
            diagnostics.append(diagnostic)
        more.update((key, value) for key, value in body.items() if key not in ("diagnostic", "object_ids"))
    diagnostics.sort(key=lambda d: (str(d["location"]), str(d["code"]), str(d["message"])))
    return {"diagnostics": [*diagnostics], "object_ids": [*ids], **more}
