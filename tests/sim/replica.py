"""One simulated replica: dictionaries in place of the database, every decision made by the production functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cks_runtime.model import gossip_asks as asks
from cks_runtime.model import gossip_exchange as exchanges
from cks_runtime.model import gossip_rules as rules
from cks_runtime.model.canon import Hash
from cks_runtime.model.claims import record_id
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.gossip_heads import Origin, SessionHeads, join_heads
from cks_runtime.model.gossip_merge import Clashes, Decided, GossipFinding, decide, known_lines
from cks_runtime.model.gossip_messages import GossipRefused, StaleTurn, decode, encode
from cks_runtime.model.graph import EMPTY_GRAPH, Graph, changes, load_graph
from cks_runtime.model.history import (
    FIRST_VERSION,
    Ancestry,
    Version,
    generation_after,
    is_ancestor,
    merge_bases,
    merge_closed,
    run_sync,
)
from cks_runtime.model.merge import Conflicted, Resolution, merge
from cks_runtime.model.operations import apply_operations
from cks_runtime.model.records import Keyring
from cks_runtime.model.trie import EMPTY_TRIE, new_nodes
from cks_runtime.model.validate import check_change

KEYS = Keyring("k", {"k": b"k" * 32})


@dataclass
class Session:
    """What the database would hold of a session."""

    origin: Origin
    own: Hash
    heads: dict[Hash, str]


@dataclass
class Record:
    """A conflict record; `notices` counts how often it was put on the queue."""

    session_id: str
    finding: GossipFinding
    state: str = "open"
    notices: int = 1


@dataclass
class Replica:
    """`peers` are the addresses (ids) it dials. What is not durable is lost by `restart`."""

    id: str
    peers: dict[str, rules.Peer]
    chance: Random
    versions: dict[Hash, Version] = field(default_factory=dict)
    ancestry: dict[Hash, Ancestry] = field(default_factory=dict)
    nodes: dict[Hash, bytes] = field(default_factory=dict)
    objects: dict[Hash, bytes] = field(default_factory=dict)
    refused: dict[Hash, tuple[Diagnostic, ...]] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    merges: int = 0
    # lost by a restart
    round: int = 0
    heard: dict[str, int] = field(default_factory=dict)
    still: dict[str, rules.Still] = field(default_factory=dict)
    clashes: Clashes = field(default_factory=dict)
    graphs: dict[Hash, Graph] = field(default_factory=dict)
    talks: dict[str, exchanges.Conversation] = field(default_factory=dict)
    view: exchanges.View | None = None
    map_blobs: dict[Hash, bytes] = field(default_factory=dict)
    shown: dict[str, Hash] = field(default_factory=dict)
    recent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keep_version(FIRST_VERSION)

    def restart(self) -> None:
        """Forget all that is not in the database."""
        self.round, self.heard, self.still, self.clashes = 0, {}, {}, {}
        self.graphs, self.talks, self.view, self.map_blobs = {}, {}, None, {}
        self.peers = {id: rules.Peer(id) for id in self.peers}

    # ---- reading

    def ancestries(self, ids: Sequence[Hash]) -> Mapping[Hash, Ancestry]:
        return {id: self.ancestry[id] for id in ids if id in self.ancestry}

    def graph_of(self, version: Hash) -> Graph:
        root = self.versions[version].root
        if root not in self.graphs:
            self.graphs[root] = run_sync(load_graph(root), self.stored)
        return self.graphs[root]

    def stored(self, hashes: Sequence[Hash]) -> Mapping[Hash, bytes]:
        return {hash: self.nodes.get(hash) or self.objects[hash] for hash in hashes}

    def descends(self, new: Hash, old: Hash) -> bool:
        return run_sync(is_ancestor(old, new), self.ancestries)

    def look(self) -> exchanges.View:
        if self.view is None:
            entries = {id: SessionHeads(id, s.origin, s.heads) for id, s in self.sessions.items()}
            trie = EMPTY_TRIE.update({id: entry.hash for id, entry in entries.items()})
            self.map_blobs.update(new_nodes(EMPTY_TRIE, trie))
            self.map_blobs.update((entry.hash, entry.blob()) for entry in entries.values())
            changed = [id for id, entry in entries.items() if self.shown.get(id) != entry.hash]
            self.shown = {id: entry.hash for id, entry in entries.items()}
            self.recent = [*changed, *(id for id in self.recent if id not in changed)][:20]
            self.view = exchanges.View(trie, entries, tuple(self.recent))
        return self.view

    # ---- answering what decisions ask

    def run(self, steps: Any, value: Any = None) -> Any:
        """Drive a decision to its next `Send` (returned) or to its end (StopIteration)."""
        while True:
            ask = steps.send(value)
            if isinstance(ask, exchanges.Send):
                return ask
            value = self.local(ask)

    def finish(self, steps: Any) -> Any:
        """Drive a decision that sends nothing."""
        try:
            self.run(steps)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("it wanted to send")

    def local(self, ask: Any) -> Any:
        match ask:
            case asks.Lacking(kind, hashes):
                table: Mapping[Hash, Any] = {
                    "version": self.versions,
                    "node": self.nodes,
                    "object": self.objects,
                }[kind]
                return {hash for hash in hashes if hash not in table}
            case asks.Stored(hashes):
                return self.stored(hashes)
            case asks.Ancestries(ids):
                return self.ancestries(ids)
            case asks.Versions(ids):
                return {id: self.versions[id] for id in ids if id in self.versions}
            case asks.Graphs(ids):
                return {id: self.graph_of(id) for id in ids}
            case asks.RefusedAmong(ids):
                return {id for id in ids if id in self.refused}
            case asks.Keep():
                return self.keep(ask)
            case asks.Apply(entry):
                return self.apply(entry)
            case exchanges.LookAtMap():
                return self.look()
            case exchanges.Hear(_, heard):
                self.heard_told = heard
                return None
            case exchanges.Find(hashes):
                return {hash: blob for hash in hashes if (blob := self.blob(hash)) is not None}
        raise AssertionError(ask)

    def blob(self, hash: Hash) -> bytes | None:
        if (version := self.versions.get(hash)) is not None:
            return version.blob()
        return self.map_blobs.get(hash) or self.nodes.get(hash) or self.objects.get(hash)

    # ---- writing

    def keep(self, kept: asks.Keep) -> None:
        self.nodes.update(kept.nodes)
        self.objects.update(kept.objects)
        for one in kept.versions:
            self.keep_version(one.version)
            assert self.ancestry[one.version.id].generation == one.generation
            if one.errors:
                self.refused[one.version.id] = one.errors

    def keep_version(self, version: Version) -> None:
        above = [self.ancestry[parent] for parent in version.parents]
        self.versions[version.id] = version
        self.ancestry[version.id] = Ancestry(version.parents, generation_after(above))

    def keep_graph(self, before: Graph, after: Graph) -> None:
        self.nodes.update(new_nodes(before.trie, after.trie))
        self.objects.update((o.hash, o.blob()) for _, _, o in changes(before, after) if o is not None)
        self.graphs[after.root] = after

    def apply(self, entry: SessionHeads) -> None:
        session = self.sessions.get(entry.session_id)
        if session is None:
            session = Session(entry.origin, FIRST_VERSION.id, {})
            self.sessions[entry.session_id] = session
        session.origin = session.origin.first(entry.origin)
        self.settle(entry.session_id, entry.heads)

    def settle(self, session_id: str, theirs: Mapping[Hash, str]) -> None:
        """Decide about a session and do it."""
        session = self.sessions[session_id]
        lines = self.finish(known_lines(session_id, session.own, session.heads, theirs, self.refused))
        still = rules.still_after(self.still.get(session_id), lines.heads)
        self.still[session_id] = still
        merging = rules.may_merge(session_id, self.id, self.heard, still)
        decided: Decided = self.finish(decide(lines, merging, KEYS, self.clashes))
        for made in decided.made:
            self.merges += made.version.id not in self.versions
            self.keep_version(made.version)
            self.keep_graph(made.before, made.graph)
        session.own, session.heads, self.view = decided.own, dict(decided.heads), None
        self.reconcile(session_id, decided.findings)

    def reconcile(self, session_id: str, findings: Sequence[GossipFinding]) -> None:
        found = {record_id([finding.claim(session_id)]): finding for finding in findings}
        for id, record in self.records.items():
            if record.session_id == session_id and id not in found:
                record.state = "closed"
        for id, finding in found.items():
            known = self.records.get(id)
            if known is None:
                self.records[id] = Record(session_id, finding)
            else:
                known.notices += known.state == "closed"
                known.state, known.finding = "open", finding

    # ---- what agents do

    def commit(self, session_id: str, graph: Graph, closed: bool, merged: tuple[Hash, ...], ms: int) -> Hash:
        session = self.sessions[session_id]
        version = Version((session.own, *merged), graph.root, closed, self.id, "", ms)
        self.keep_version(version)
        self.keep_graph(self.graph_of(session.own), graph)
        others = {head: by for head, by in session.heads.items() if head != session.own}
        session.own = version.id
        session.heads = dict(run_sync(join_heads({version.id: self.id}, others), self.ancestries))
        self.view = None
        self.settle(session_id, {})
        return version.id

    def make_session(self, session_id: str, origin: Origin, head: Hash) -> None:
        self.sessions[session_id] = Session(origin, head, {head: self.id})
        self.view = None

    def edit(self, session_id: str, operations: list[Any], ms: int) -> Hash | None:
        session = self.sessions[session_id]
        before = self.graph_of(session.own)
        after = apply_operations(before, operations).graph
        if self.versions[session.own].closed or after.root == before.root:
            return None
        return self.commit(session_id, after, False, (), ms)

    def resolve(self, session_id: str, pick: Callable[[str], Resolution], ms: int) -> bool:
        """Merge the other side of an open conflict with resolutions, as `merge_branch` does."""
        session = self.sessions[session_id]
        others = [h for h in session.heads if h != session.own and h not in self.refused]
        if not others:
            return False
        other = others[0]
        bases = run_sync(merge_bases(session.own, other), self.ancestries)
        grounds = [self.graph_of(base) for base in bases]
        ours, theirs = self.graph_of(session.own), self.graph_of(other)
        resolutions: dict[str, Resolution] = {}
        outcome = merge(grounds, ours, theirs, KEYS)
        while isinstance(outcome, Conflicted):
            resolutions.update({c.object_id: pick(c.object_id) for c in outcome.conflicts})
            outcome = merge(grounds, ours, theirs, KEYS, resolutions)
        if check_change([ours, theirs], outcome.graph, outcome.touched, KEYS):
            return False
        known = [self.versions[base].closed for base in bases]
        closed = merge_closed(known, self.versions[session.own].closed, self.versions[other].closed)
        self.commit(session_id, outcome.graph, closed, (other,), ms)
        return True

    # ---- rounds

    def begin_round(self) -> list[rules.Peer]:
        """One round later: sessions with several heads are looked at again; whom to dial."""
        self.round += 1
        self.heard = rules.heard_later(self.heard)
        for id, session in self.sessions.items():
            if id in self.still:
                self.still[id] = self.still[id].later()
            if len(session.heads) > 1:
                self.settle(id, {})
        order = list(range(len(self.peers)))
        self.chance.shuffle(order)
        return rules.partners(list(self.peers.values()), self.round, order)

    def hear(self, peer: str) -> None:
        self.heard = rules.heard_joined(self.heard, peer, self.heard_told, self.id)

    heard_told: Mapping[str, int] = field(default_factory=dict)

    def handle(self, peer: str, data: bytes) -> bytes:
        """Answer a request. Raises GossipRefused."""
        self.heard_told = {}
        steps = exchanges.answer(decode(data), self.id, self.heard, self.talks.get(peer), KEYS)
        try:
            reply, talk = self.finish(steps)
        except StaleTurn:
            raise
        except GossipRefused:
            self.talks.pop(peer, None)
            raise
        if talk is None:
            self.talks.pop(peer, None)
        else:
            self.talks[peer] = talk
        self.hear(peer)
        return encode(reply)


def empty() -> Graph:
    """The empty graph."""
    return EMPTY_GRAPH
