"""What gossip does to the tables: keeps history that arrived, moves heads, and raises and closes conflicts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import anyio

from cks_runtime.flow.clock import Clock
from cks_runtime.flow.conflicts import Conflicts
from cks_runtime.flow.graphs import Graphs, in_worker
from cks_runtime.flow.heads_map import HeadsMap, known_heads, origin_of
from cks_runtime.flow.journal import Journal
from cks_runtime.flow.remote_plan import Plan, Read
from cks_runtime.model import gossip_asks as asks
from cks_runtime.model.canon import Hash
from cks_runtime.model.claims import record_id
from cks_runtime.model.errors import VersionNotFound
from cks_runtime.model.events import Event
from cks_runtime.model.gossip_exchange import Find, Hear, LookAtMap, Send
from cks_runtime.model.gossip_heads import SessionHeads
from cks_runtime.model.gossip_merge import Clashes, Decided, Made, decide, known_lines
from cks_runtime.model.gossip_messages import Blobs, Message
from cks_runtime.model.graph import Graph, changes
from cks_runtime.model.history import FIRST_VERSION, Ancestry
from cks_runtime.model.knowledge import object_from_blob
from cks_runtime.model.records import Keyring
from cks_runtime.model.validity import due
from cks_runtime.store import blobs as blob_rows
from cks_runtime.store import gossip as rows
from cks_runtime.store import sessions, sweeps
from cks_runtime.store.gossip import RemoteHead
from cks_runtime.store.ports import Store

TRIES_MAX: Final = 8
CLASHES_MAX: Final = 2_000
HEAVY: Final = 20
"""After an answer of more parts than this, work goes on in a thread until it is stored."""

T = TypeVar("T")
Sending = Callable[[Message], Awaitable[Message]]
Hearing = Callable[[str, Mapping[str, int]], None]
MayMerge = Callable[[str, Mapping[Hash, str]], bool]


@dataclass(frozen=True, slots=True)
class _Settled:
    """The last decision about a session, and what it was made from."""

    read: Read
    decided: Decided
    merging: bool


class _End:
    """A decision's result, carried out of a thread where StopIteration cannot travel."""

    def __init__(self, value: object) -> None:
        self.value = value


def _step(steps: Any, answer: object) -> object:
    try:
        return steps.send(answer)
    except StopIteration as stop:
        return _End(stop.value)


def _heavy(answer: object) -> bool:
    if isinstance(answer, Blobs):
        return len(answer.blobs) > HEAVY
    if not isinstance(answer, dict):
        return False
    return len(answer) > HEAVY or any(isinstance(v, Graph) and len(v) > 10 * HEAVY for v in answer.values())


class Remote:
    """Drives the protocol's decisions over the store of one replica."""

    def __init__(
        self,
        store: Store,
        graphs: Graphs,
        journal: Journal,
        conflicts: Conflicts,
        keys: Keyring,
        clock: Clock,
        me: str,
        instance_id: str,
    ) -> None:
        self._store = store
        self._graphs = graphs
        self._journal = journal
        self._conflicts = conflicts
        self._keys = keys
        self._clock = clock
        self._me = me
        self._origin = instance_id
        self._clashes: Clashes = {}
        self._done: dict[str, _Settled] = {}
        self._turn = anyio.Lock()
        self.map = HeadsMap(store, graphs, me)
        self.may_merge: MayMerge = lambda session_id, heads: True

    # ---- what decisions ask

    async def run(
        self,
        steps: asks.Asking[T],
        send: Sending | None = None,
        hear: Hearing | None = None,
        heavy: bool = False,
    ) -> T:
        """Drive a decision to its end; `send` carries messages, `hear` learns who is out there.

        `heavy`: it begins with much work.
        """
        answer: object = None
        while True:
            heavy = heavy or _heavy(answer)
            if heavy:
                ask = await in_worker(lambda given=answer: _step(steps, given))  # type: ignore[misc]
            else:
                ask = _step(steps, answer)
            match ask:
                case _End(value=value):
                    return cast(T, value)
                case Send(message):
                    assert send is not None, "this decision has nobody to send to"
                    answer = await send(message)
                case Hear(sender, heard):
                    answer = None
                    if hear is not None:
                        hear(sender, heard)
                case _:
                    heavy = heavy and not isinstance(ask, asks.Keep | asks.Apply)
                    answer = await self._local(ask)

    async def _local(self, ask: object) -> object:
        match ask:
            case asks.Ancestries(ids):
                return await self._ancestries(ids)
            case asks.Versions(ids):
                async with self._store.reader() as reader:
                    return await blob_rows.get_versions(reader, ids)
            case asks.Graphs(ids):
                return {id: await self._graphs.graph((await self._graphs.version(id)).root) for id in ids}
            case asks.Stored(hashes):
                return await self._graphs.blobs(hashes)
            case asks.Keep():
                await self._keep(ask)
                return None
            case asks.Apply(entry):
                await self.settle(entry.session_id, entry)
                return None
            case LookAtMap():
                await self.map.refresh()
                return self.map.view()
            case _:
                return await self._lookup(ask)

    async def _ancestries(self, ids: Sequence[Hash]) -> Mapping[Hash, Ancestry]:
        """Those that are stored: a peer names versions that are not."""
        try:
            return await self._graphs.ancestries(ids)
        except VersionNotFound:
            async with self._store.reader() as reader:
                return await blob_rows.get_ancestry(reader, ids)

    async def _lookup(self, ask: object) -> object:
        async with self._store.reader() as reader:
            match ask:
                case asks.Lacking(kind, hashes):
                    return set(hashes) - await rows.stored_among(reader, kind, hashes)
                case asks.RefusedAmong(ids):
                    return set(await rows.refused_among(reader, ids))
                case Find(hashes):
                    found = self.map.blobs(hashes)
                    left = [hash for hash in hashes if hash not in found]
                    return {**found, **await rows.find_blobs(reader, left)}
        raise AssertionError(f"nobody answers {ask!r}")

    async def _keep(self, kept: asks.Keep) -> None:
        """Store history that was checked; nothing shows it before a head leads there."""
        dates = await in_worker(lambda: _due_dates(kept.objects))
        async with self._store.unit() as unit:
            await blob_rows.put_blobs(unit, ((hash, "object", data) for hash, data in kept.objects.items()))
            await blob_rows.put_blobs(unit, ((hash, "node", data) for hash, data in kept.nodes.items()))
            await rows.put_versions(unit, ((one.version, one.generation) for one in kept.versions))
            await rows.put_refused(unit, ((v.version.id, v.errors) for v in kept.versions if v.errors))
            await sweeps.put_due(unit, dates)

    # ---- a session

    async def settle(self, session_id: str, entry: SessionHeads | None = None) -> None:
        """Join what `entry` tells with what is known of the session, decide, and do it in one transaction."""
        async with self._turn:
            for _ in range(TRIES_MAX):
                read = await self._read(session_id)
                if entry is None and (read.row is None or self._is_settled(session_id, read)):
                    return
                decided, merging = await self._decide(session_id, read, entry)
                events = await self._write(session_id, read, decided, entry, merging)
                if events is not None:
                    await self._journal.told(events)
                    await self.map.refresh()
                    await self.map.touch(session_id)
                    return

    def _is_settled(self, session_id: str, read: Read) -> bool:
        """Whether a decision now would be the last one over again."""
        last = self._done.get(session_id)
        if last is None or last.read != read:
            return False
        return self.may_merge(session_id, last.decided.heads) in (False, last.merging)

    async def _read(self, session_id: str) -> Read:
        async with self._store.reader() as reader:
            row = await sessions.get_session(reader, session_id)
            return Read(row, tuple(await rows.remote_heads(reader, session_id)))

    async def _decide(self, session_id: str, read: Read, entry: SessionHeads | None) -> tuple[Decided, bool]:
        mine = known_heads(read.row, read.remote, self._me)
        theirs = entry.heads if entry is not None else {}
        async with self._store.reader() as reader:
            refused = await rows.refused_among(reader, [*mine, *theirs])
        own = None if read.row is None else read.row.head
        lines = await self.run(known_lines(session_id, own, mine, theirs, refused))
        merging = self.may_merge(session_id, lines.heads)
        if len(self._clashes) > CLASHES_MAX:
            self._clashes.clear()
        return await self.run(decide(lines, merging, self._keys, self._clashes)), merging

    async def _write(
        self, session_id: str, read: Read, decided: Decided, entry: SessionHeads | None, merging: bool
    ) -> Sequence[Event] | None:
        """The events to tell; None when the session moved meanwhile, so that all is decided again."""
        plan = await self._planned(session_id, read, decided, entry)
        if plan.idle(read):
            self._done[session_id] = _Settled(read, decided, merging)
            return ()
        async with self._store.unit() as unit:
            row = await sessions.get_session(unit, session_id)
            if Read(row, tuple(await rows.remote_heads(unit, session_id))) != read:
                return None
            events = await plan.carry_out(unit, read.row, self._conflicts, self._clock(), self._origin)
        self._done[session_id] = _Settled(Read(read.row, plan.remote), decided, merging)
        return events

    async def _planned(
        self, session_id: str, read: Read, decided: Decided, entry: SessionHeads | None
    ) -> Plan:
        origins = [origin_of(read.row)] if read.row is not None else []
        origins += [entry.origin] if entry is not None else []
        origin = origins[0].first(origins[-1])
        made = {one.version.id: one for one in decided.made}
        head = made[decided.own].version if decided.own in made else await self._graphs.version(decided.own)
        previous = read.row.head if read.row is not None else FIRST_VERSION.id
        changed = 0
        if head.id != previous:
            before = await self._graphs.graph((await self._graphs.version(previous)).root)
            graph = made[head.id].graph if head.id in made else await self._graphs.graph(head.root, before)
            changed = await in_worker(lambda: len(changes(before, graph)))
        same = self._done.get(session_id)
        standing = None if any(one.record_id for one in read.remote) else ()
        known = same.decided.findings if same is not None else standing
        return Plan(
            session_id,
            decided,
            head,
            origin,
            previous,
            changed,
            await self._remote_rows(session_id, read, decided, made),
            known == decided.findings,
        )

    async def _remote_rows(
        self, session_id: str, read: Read, decided: Decided, made: Mapping[Hash, Made]
    ) -> tuple[RemoteHead, ...]:
        """The rows to be; a line keeps the names of those whose heads it took over."""
        records: dict[str, str] = {}
        for finding in decided.findings:
            sources = finding.about["source_heads"]
            assert isinstance(sources, list)
            name = record_id([finding.claim(session_id)])
            records.update((str(source), name) for source in sources)
        kept = []
        for head, holder in decided.heads.items():
            if head == decided.own and holder == self._me:
                continue
            names = {holder: None}
            for old in read.remote:
                if old.record_id is not None and await self._descends(head, old.head, made):
                    names.update(dict.fromkeys(old.names))
            record = records.get(head.hex())
            kept.append(RemoteHead(session_id, head, holder, tuple(names), record))
        return tuple(sorted(kept, key=lambda one: one.head))

    async def _descends(self, new: Hash, old: Hash, made: Mapping[Hash, Made]) -> bool:
        if new in made:
            parents = made[new].version.parents
            return any([await self._graphs.is_ancestor(old, parent) for parent in parents])
        return await self._graphs.is_ancestor(old, new)


def _due_dates(objects: Mapping[Hash, bytes]) -> list[tuple[sweeps.DueKind, int, Hash, str]]:
    """When these objects fall due, in whatever session they stand."""
    read = (object_from_blob(data, hash) for hash, data in objects.items())
    return [(kind, at_ms, obj.hash, obj.id) for obj in read for kind, at_ms in due(obj)]
