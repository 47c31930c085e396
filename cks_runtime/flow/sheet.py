"""The writes of one comparison of conflict records with what rules find: in one unit, each sort one statement."""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cks_runtime.model.canon import Hash, Json
from cks_runtime.model.claims import Finding, record_id
from cks_runtime.model.events import ConflictClosed, Event
from cks_runtime.store import conflicts as rows
from cks_runtime.store import gossip, outbox
from cks_runtime.store.conflicts import ClaimRow, RecordRow
from cks_runtime.store.journal import append_events
from cks_runtime.store.ports import Unit

ACKNOWLEDGED = "acknowledged"

Group = Mapping[Hash, Finding]


@dataclass(slots=True)
class Sheet:
    """Writes records of one kind in one session; `events` is what is to be told after the commit.

    `event` makes a record's event, `task_type` is None without an outbox, new tasks are due at `due_ms`.
    """

    unit: Unit
    kind: str
    task_type: str | None
    event: Callable[[RecordRow], Event]
    grouped: bool
    session_id: str
    version_id: str
    now_ms: int
    due_ms: int
    events: list[Event] = field(default_factory=list)

    async def refresh(self, standing: Sequence[ClaimRow], found: Mapping[Hash, Finding]) -> None:
        """Give claims that stand the values of today."""
        changed = [
            replace(row, body=found[row.claim].body())
            for row in standing
            if found[row.claim].body() != row.body
        ]
        await rows.put_claims(self.unit, changed)
        names = sorted({row.record_id for row in changed})
        await self._rewrite(names, await self._standing(names))

    async def close(
        self, gone: Sequence[ClaimRow], replaced_at: Collection[str], gone_how: Callable[[ClaimRow], str]
    ) -> None:
        """Close claims whose cause is gone, and each record with its last claim."""
        await rows.put_claims(self.unit, [replace(row, state="closed") for row in gone])
        names = sorted({row.record_id for row in gone})
        left = await self._standing(names)
        await self._rewrite([name for name in names if name in left], left)
        hows = {row.record_id: gone_how(row) for row in reversed(gone) if row.record_id not in left}
        hows |= {
            row.record_id: "replaced" for row in gone if row.record_id in hows and row.anchor in replaced_at
        }
        await self._close_records(hows)

    async def open(self, fresh: Group) -> int:
        """Raise records for new claims; an acknowledged one stays closed. Returns how many were raised."""
        if not fresh:
            return 0
        groups: list[Group] = [fresh] if self.grouped else [{claim: found} for claim, found in fresh.items()]
        named = {record_id(group): group for group in groups}
        before = await rows.get_records(self.unit, [*named])
        raised = {
            name: group
            for name, group in named.items()
            if name not in before or before[name].closed_how != ACKNOWLEDGED
        }
        await self._raise(raised, before)
        return len(raised)

    async def acknowledge(self, claim: Hash, finding: Finding) -> str:
        """Close the record of one claim for good."""
        name = record_id([claim])
        before = await rows.get_records(self.unit, [name])
        if name not in before or before[name].state == "closed":
            if name in before and before[name].closed_how == ACKNOWLEDGED:
                return name
            await self._raise({name: {claim: finding}}, before)
        kept = await rows.record_claims(self.unit, [name])
        await rows.put_claims(self.unit, [replace(row, state="closed") for row in kept])
        await self._close_records({name: ACKNOWLEDGED})
        return name

    async def _raise(self, groups: Mapping[str, Group], before: Mapping[str, RecordRow]) -> None:
        if not groups:
            return
        fresh = [self._record(name, group, before.get(name)) for name, group in groups.items()]
        events = await append_events(self.unit, [self.event(record) for record in fresh])
        self.events += events
        fresh = [replace(record, notice_no=event.seq) for record, event in zip(fresh, events, strict=True)]
        await rows.put_records(self.unit, fresh)
        await rows.put_claims(
            self.unit,
            [
                ClaimRow(claim, self.kind, self.session_id, finding.anchor, name, "open", finding.body())
                for name, group in groups.items()
                for claim, finding in group.items()
            ],
        )
        if self.task_type is None:
            return
        tasks = {record.record_id: (f"task-{secrets.token_hex(8)}", task_payload(record)) for record in fresh}
        await outbox.put_tasks(self.unit, self.task_type, self.session_id, tasks, self.now_ms)
        if self.due_ms > self.now_ms:
            for name in tasks:
                await gossip.postpone_task(self.unit, name, self.due_ms)

    def _record(self, name: str, group: Group, before: RecordRow | None) -> RecordRow:
        return RecordRow(
            record_id=name,
            kind=self.kind,
            session_id=self.session_id,
            state="open",
            occurrence=1 if before is None else before.occurrence + 1,
            notice_no=0,
            detected_at_ms=self.now_ms,
            updated_at_ms=self.now_ms,
            version_id=self.version_id,
            body=_body(finding.body() for finding in group.values()),
            drained_at_ms=None,
            closed_at_ms=None,
            closed_how=None,
        )

    async def _standing(self, names: Sequence[str]) -> dict[str, list[ClaimRow]]:
        """The open claims of these records, by record; a record without any is left out."""
        found: dict[str, list[ClaimRow]] = defaultdict(list)
        for row in await rows.record_claims(self.unit, names):
            if row.state == "open":
                found[row.record_id].append(row)
        return found

    async def _rewrite(self, names: Sequence[str], left: Mapping[str, Sequence[ClaimRow]]) -> None:
        """Give records the bodies of the claims that are left to them."""
        fresh = [
            replace(
                record,
                version_id=self.version_id,
                body=_body(row.body for row in left[record.record_id]),
                updated_at_ms=self.now_ms,
            )
            for record in (await rows.get_records(self.unit, names)).values()
        ]
        await rows.put_records(self.unit, fresh)
        if self.task_type is not None:
            await outbox.refresh_payloads(
                self.unit, {record.record_id: task_payload(record) for record in fresh}
            )

    async def _close_records(self, hows: Mapping[str, str]) -> None:
        known = await rows.get_records(self.unit, sorted(hows))
        closing = [known[name] for name in sorted(known) if known[name].state == "open"]
        closed = [
            ConflictClosed(
                at_ms=self.now_ms,
                session_id=record.session_id,
                record_id=record.record_id,
                conflict_kind=record.kind,
                occurrence=record.occurrence,
                how=hows[record.record_id],
            )
            for record in closing
        ]
        self.events += await append_events(self.unit, closed)
        await rows.put_records(
            self.unit,
            [
                replace(
                    record,
                    state="closed",
                    closed_at_ms=self.now_ms,
                    closed_how=hows[record.record_id],
                    updated_at_ms=self.now_ms,
                    version_id=self.version_id,
                )
                for record in closing
            ],
        )
        if self.task_type is not None:
            await outbox.remove_tasks(self.unit, [record.record_id for record in closing])


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
