"""What a gossip decision about one session writes, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from cks_runtime.flow.conflicts import Conflicts
from cks_runtime.flow.heads_map import origin_of
from cks_runtime.model.canon import Hash
from cks_runtime.model.events import Event, HeadMoved, SessionCreated
from cks_runtime.model.gossip_heads import Origin
from cks_runtime.model.gossip_merge import Decided, Made
from cks_runtime.model.graph import changes
from cks_runtime.model.history import FIRST_VERSION, Version
from cks_runtime.model.trie import new_nodes
from cks_runtime.model.validity import due
from cks_runtime.store import blobs as blob_rows
from cks_runtime.store import gossip as rows
from cks_runtime.store import sessions, sweeps
from cks_runtime.store.conflicts import ClaimRow
from cks_runtime.store.gossip import RemoteHead
from cks_runtime.store.journal import append_events
from cks_runtime.store.ports import Unit
from cks_runtime.store.sessions import SessionRow


@dataclass(frozen=True, slots=True)
class Read:
    """A session as it was read, which it must still be when it is written."""

    row: SessionRow | None
    remote: tuple[RemoteHead, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What one decision writes."""

    session_id: str
    decided: Decided
    head: Version
    origin: Origin
    previous: Hash
    changed: int
    remote: tuple[RemoteHead, ...]
    findings_known: bool

    def idle(self, read: Read) -> bool:
        """Whether the tables have all this already."""
        row = read.row
        if row is None or not self.findings_known or self.decided.made:
            return False
        return row.head == self.head.id and read.remote == self.remote and origin_of(row) == self.origin

    async def carry_out(
        self, unit: Unit, row: SessionRow | None, conflicts: Conflicts, now_ms: int, origin: str
    ) -> list[Event]:
        """Write it; the events."""
        for made in self.decided.made:
            await _keep_made(unit, made)
        events = await append_events(unit, self._events(row, now_ms, origin))
        await self._move(unit, row, events[-1].seq if events else 0, now_ms)
        await rows.replace_remote_heads(unit, self.session_id, self.remote)
        outcome = await conflicts.reconcile(
            unit,
            "gossip",
            self.session_id,
            self.head.id.hex(),
            self.decided.findings,
            None,
            now_ms,
            self._how_gone,
        )
        return [*events, *outcome.events]

    def _how_gone(self, claim: ClaimRow) -> str:
        sources = claim.body.get("source_heads")
        standing = {head.hex() for head in self.decided.heads}
        merged = not isinstance(sources, list) or standing.isdisjoint(str(source) for source in sources)
        return "resolved" if merged else "cause_gone"

    def _events(self, row: SessionRow | None, now_ms: int, origin: str) -> list[Event]:
        events: list[Event] = []
        if row is None:
            first = FIRST_VERSION.id.hex()
            events.append(
                SessionCreated(
                    at_ms=now_ms, session_id=self.session_id, title=self.origin.title, version_id=first
                )
            )
        if self.head.id != self.previous:
            events.append(
                HeadMoved(
                    at_ms=now_ms,
                    session_id=self.session_id,
                    version_id=self.head.id.hex(),
                    previous_id=self.previous.hex(),
                    author=self.head.author,
                    closed=self.head.closed,
                    changed=self.changed,
                    origin=origin,
                )
            )
        return events

    async def _move(self, unit: Unit, row: SessionRow | None, seq: int, now_ms: int) -> None:
        head, origin = self.head, self.origin
        if row is None:
            made = SessionRow(
                session_id=self.session_id,
                title=origin.title,
                fork_session=origin.fork_session,
                fork_version=origin.fork_version,
                head=head.id,
                root=head.root,
                closed=head.closed,
                created_at_ms=now_ms,
                moved_at_ms=now_ms,
                moved_seq=seq,
                generation=0,
            )
            await sessions.insert_session(unit, made)
            return
        if head.id != row.head:
            if len(head.parents) > 1 and row.head in head.parents:
                await sessions.put_merge(unit, self.session_id, head.id, row.head)
            await sessions.move_head(
                unit, self.session_id, row.head, head.id, head.root, head.closed, now_ms, seq
            )
        if origin_of(row) != origin:
            await rows.set_origin(
                unit, self.session_id, origin.title, origin.fork_session, origin.fork_version
            )


async def _keep_made(unit: Unit, made: Made) -> None:
    fresh = [obj for _, _, obj in changes(made.before, made.graph) if obj is not None]
    nodes = list(new_nodes(made.before.trie, made.graph.trie))
    await blob_rows.put_blobs(unit, ((hash, "node", data) for hash, data in nodes))
    await blob_rows.put_blobs(unit, ((obj.hash, "object", obj.blob()) for obj in fresh))
    await blob_rows.put_version(unit, made.version, made.generation)
    await sweeps.put_due(unit, [(kind, at_ms, obj.hash, obj.id) for obj in fresh for kind, at_ms in due(obj)])
