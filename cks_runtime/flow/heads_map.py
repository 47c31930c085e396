"""This replica's map of heads in memory: built from the tables, followed by the journal's numbers, served by hash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cks_runtime.flow.graphs import Graphs, drive
from cks_runtime.model.canon import Hash
from cks_runtime.model.gossip_exchange import View
from cks_runtime.model.gossip_heads import Origin, SessionHeads, join_heads
from cks_runtime.model.trie import EMPTY_TRIE, Trie, new_nodes
from cks_runtime.store import gossip as rows
from cks_runtime.store import sessions
from cks_runtime.store.gossip import RemoteHead
from cks_runtime.store.ports import Store
from cks_runtime.store.sessions import SessionRow

RECENT_MAX: Final = 20
PAGE: Final = 500
SPARE: Final = 10_000


def known_heads(row: SessionRow | None, remote: Iterable[RemoteHead], me: str) -> dict[Hash, str]:
    """A session's heads with their holders as the tables have them, our own among them."""
    heads = {one.head: one.holder for one in remote}
    if row is not None:
        heads.setdefault(row.head, me)
    return heads


def origin_of(row: SessionRow) -> Origin:
    """What is fixed of a session."""
    return Origin(row.title, row.fork_session, row.fork_version)


class HeadsMap:
    """The map as the tables have it after `refresh`. One process of a database keeps it: the one that gossips."""

    def __init__(self, store: Store, graphs: Graphs, me: str) -> None:
        self._store = store
        self._graphs = graphs
        self._me = me
        self._trie = EMPTY_TRIE
        self._entries: dict[str, SessionHeads] = {}
        self._blobs: dict[Hash, bytes] = {}
        self._recent: list[str] = []
        self._cursor = 0

    def view(self) -> View:
        """The map at this moment."""
        return View(self._trie, self._entries, tuple(self._recent))

    @property
    def root(self) -> Hash:
        """What two replicas compare."""
        return self._trie.root

    def several(self) -> list[str]:
        """Sessions that have more than one head."""
        return [id for id, entry in self._entries.items() if len(entry.heads) > 1]

    def blobs(self, hashes: Iterable[Hash]) -> dict[Hash, bytes]:
        """Nodes and entries of this map, or of one that it was a while ago."""
        return {hash: self._blobs[hash] for hash in hashes if hash in self._blobs}

    async def refresh(self) -> None:
        """Take up every session whose head moved since the last time, in this process or another."""
        while True:
            async with self._store.reader() as reader:
                moved = await sessions.moved_sessions(reader, self._cursor, PAGE)
                remote = await rows.remote_heads_of(reader, [row.session_id for row in moved])
            if not moved:
                return
            await self._take(moved, remote)
            self._cursor = moved[-1].moved_seq

    async def touch(self, session_id: str) -> None:
        """Take up one session whose other heads changed."""
        async with self._store.reader() as reader:
            row = await sessions.get_session(reader, session_id)
            remote = await rows.remote_heads(reader, session_id)
        if row is not None:
            await self._take([row], remote)

    async def _take(self, moved: Sequence[SessionRow], remote: Sequence[RemoteHead]) -> None:
        by_session: dict[str, list[RemoteHead]] = {}
        for one in remote:
            by_session.setdefault(one.session_id, []).append(one)
        fresh: dict[str, SessionHeads] = {}
        for row in moved:
            heads: Mapping[Hash, str] = known_heads(row, by_session.get(row.session_id, ()), self._me)
            if len(heads) > 1:
                heads = await drive(join_heads(heads), self._graphs.ancestries)
            entry = SessionHeads(row.session_id, origin_of(row), heads)
            known = self._entries.get(row.session_id)
            if known is None or known.hash != entry.hash:
                fresh[row.session_id] = entry
        if fresh:
            self._put(fresh)

    def _put(self, fresh: dict[str, SessionHeads]) -> None:
        trie = self._trie.update({id: entry.hash for id, entry in fresh.items()})
        self._entries = {**self._entries, **fresh}  # views hold the one before
        self._keep(self._trie, trie, fresh.values())
        self._trie = trie
        self._recent = [*fresh, *(id for id in self._recent if id not in fresh)][:RECENT_MAX]

    def _keep(self, before: Trie, after: Trie, fresh: Iterable[SessionHeads]) -> None:
        """Keep what peers may ask for by hash; of maps long past it is forgotten now and then."""
        if len(self._blobs) > SPARE + 4 * len(self._entries):
            self._blobs = {entry.hash: entry.blob() for entry in self._entries.values()}
            before = EMPTY_TRIE
        self._blobs.update(new_nodes(before, after))
        self._blobs.update((entry.hash, entry.blob()) for entry in fresh)
