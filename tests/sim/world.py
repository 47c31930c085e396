"""A world of replicas, its bad network, what agents do in it, and what must hold afterwards."""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cks_runtime.model import gossip_exchange as exchanges
from cks_runtime.model import gossip_rules as rules
from cks_runtime.model.canon import Hash
from cks_runtime.model.gossip_heads import Origin
from cks_runtime.model.gossip_messages import GossipRefused, decode, encode
from cks_runtime.model.graph import changes
from cks_runtime.model.history import FIRST_VERSION, merge_bases, run_sync
from cks_runtime.model.merge import Merged, merge
from tests.sim.replica import KEYS, Replica

SESSIONS = ("main", "plan")
FIELDS = ("a", "b")


@dataclass(frozen=True)
class Weather:
    """How bad it is. `busy_rounds` of edits with partitions and restarts, then quiet until all are equal."""

    replicas: int
    busy_rounds: int = 20
    loss: float = 0.2
    duplicates: float = 0.1
    partition: float = 0.1
    heal: float = 0.15
    restart: float = 0.02
    edits: float = 0.25
    writers: int | None = None
    objects: int = 4

    @classmethod
    def of(cls, seed: int) -> Weather:
        """The weather of a seed: replicas 2 to 16, some runs calm, some stormy."""
        chance = Random(seed)
        return cls(
            replicas=chance.choice((2, 2, 3, 3, 4, 5, 8, 16)),
            busy_rounds=chance.randint(10, 40),
            loss=chance.choice((0.0, 0.1, 0.2)),
            duplicates=chance.choice((0.0, 0.1, 0.3)),
            partition=chance.choice((0.0, 0.3, 0.6)),
            restart=chance.choice((0.0, 0.02, 0.05)),
            edits=chance.choice((0.2, 0.5, 0.8)),
        )


@dataclass
class Dial:
    """An exchange under way: the dialling replica's steps, and the message it waits for."""

    replica: Replica
    peer: rules.Peer
    steps: Any
    sent: bytes | None = None
    reply: Any = None


@dataclass
class Figures:
    """What a run measured; rounds."""

    readable: list[int] = field(default_factory=list)
    to_equal: int = 0
    edits: int = 0
    versions: int = 0
    conflicts: int = 0


class World:
    """Everything follows from the seed."""

    def __init__(self, seed: int, weather: Weather) -> None:
        self.chance = Random(seed)
        self.weather = weather
        ids = [
            "".join(self.chance.choices(string.ascii_lowercase + string.digits, k=16))
            for _ in range(weather.replicas)
        ]
        self.replicas = {
            id: Replica(id, {peer: rules.Peer(peer) for peer in ids if peer != id}, Random(f"{seed}{id}"))
            for id in ids
        }
        self.side: dict[str, int] = dict.fromkeys(ids, 0)
        self.late: list[tuple[str, str, bytes]] = []
        self.round = 0
        self.acknowledged: list[tuple[str, Hash, str, int]] = []
        self.unread: dict[tuple[str, Hash], tuple[int, set[str]]] = {}
        self.figures = Figures()
        self.number = 0

    # ---- network

    def reaches(self, a: str, b: str) -> bool:
        return self.side[a] == self.side[b]

    def deliver(self, sender: str, receiver: str, data: bytes) -> bytes | None:
        """A request and its reply; None when either is lost or the receiver refuses."""
        chance, weather = self.chance, self.weather
        if not self.reaches(sender, receiver) or chance.random() < weather.loss / 2:
            return None
        reply = self.handled(sender, receiver, data)
        if chance.random() < weather.duplicates:
            if chance.random() < 0.5:
                self.handled(sender, receiver, data)
            else:
                self.late.append((sender, receiver, data))
        return None if chance.random() < weather.loss / 2 else reply

    def handled(self, sender: str, receiver: str, data: bytes) -> bytes | None:
        try:
            return self.replicas[receiver].handle(sender, data)
        except GossipRefused:
            return None

    def gossip(self) -> None:
        """One round: every replica dials; the steps of all exchanges are shuffled into each other."""
        dials: list[Dial] = []
        for replica in self.replicas.values():
            for peer in replica.begin_round():
                name = f"{self.round}-{self.chance.random()}"
                dials.append(Dial(replica, peer, exchanges.dial(replica.id, replica.heard, name, KEYS)))
        while dials:
            dial = self.chance.choice(dials)
            if not self.step(dial):
                dials.remove(dial)
        for sender, receiver, data in self.late:
            if self.chance.random() < 0.5:
                self.handled(sender, receiver, data)
        self.late = self.late[-5:] if self.chance.random() < 0.5 else []

    def step(self, dial: Dial) -> bool:
        """Advance an exchange by one message; False when it is over."""
        replica, peer = dial.replica, dial.peer.address
        try:
            sending = replica.run(dial.steps, dial.reply)
        except StopIteration:
            replica.hear(peer)
            replica.peers[peer] = rules.peer_answered(replica.peers[peer])
            return False
        except GossipRefused:
            replica.peers[peer] = rules.peer_failed(replica.peers[peer], replica.round)
            return False
        got = self.deliver(replica.id, peer, encode(sending.message))
        if got is None:
            replica.peers[peer] = rules.peer_failed(replica.peers[peer], replica.round)
            return False
        dial.reply = decode(got)
        return True

    # ---- life

    def live(self) -> None:
        """A whole run: busy rounds, then quiet ones until all are equal. Raises AssertionError."""
        for _ in range(self.weather.busy_rounds):
            self.storm()
            self.work()
            self.advance()
        self.side = dict.fromkeys(self.side, 0)
        self.figures.to_equal = self.until_equal()
        self.check()
        self.settle_all()
        self.until_equal()
        self.check()
        assert not any(len(s.heads) > 1 for r in self.replicas.values() for s in r.sessions.values())

    def advance(self) -> None:
        self.round += 1
        self.gossip()
        for (session_id, version), (since, waiting) in list(self.unread.items()):
            for id in list(waiting):
                if self.readable(self.replicas[id], session_id, version):
                    waiting.discard(id)
                    self.figures.readable.append(self.round - since)
            if not waiting:
                del self.unread[session_id, version]

    def readable(self, replica: Replica, session_id: str, version: Hash) -> bool:
        session = replica.sessions.get(session_id)
        return session is not None and version in replica.ancestry and replica.descends(session.own, version)

    def until_equal(self, rounds_max: int = 20) -> int:
        """Rounds until all maps are equal. Raises AssertionError when it takes too long."""
        for count in range(rounds_max + 1):
            if self.equal():
                return count
            self.advance()
        raise AssertionError(f"not equal after {rounds_max} rounds")

    def equal(self) -> bool:
        if len({replica.look().trie.root for replica in self.replicas.values()}) > 1:
            return False
        one = next(iter(self.replicas.values()))
        # what merges has to be merged
        for session_id, session in one.sessions.items():
            for replica in self.replicas.values():
                mine = replica.sessions[session_id]
                conflicting = sum(
                    len(r.finding.about["source_heads"])  # type: ignore[arg-type]
                    for r in replica.records.values()
                    if r.session_id == session_id and r.state == "open"
                )
                if mine.own not in mine.heads or conflicting != len(session.heads) - 1:
                    return False
        return True

    def storm(self) -> None:
        chance, weather = self.chance, self.weather
        if len(set(self.side.values())) > 1:
            if chance.random() < weather.heal:
                self.side = dict.fromkeys(self.side, 0)
        elif chance.random() < weather.partition:
            self.side = {id: chance.randrange(2) for id in self.side}
        for replica in self.replicas.values():
            if chance.random() < weather.restart:
                replica.restart()

    def work(self) -> None:
        writers = list(self.replicas.values())[: self.weather.writers]
        for replica in writers:
            if self.chance.random() < self.weather.edits:
                self.act(replica)

    def act(self, replica: Replica) -> None:
        chance = self.chance
        self.number += 1
        session_id = chance.choice([*SESSIONS, *replica.sessions])
        if session_id not in replica.sessions:
            replica.make_session(
                session_id, Origin(f"by {replica.id}", None, FIRST_VERSION.id), FIRST_VERSION.id
            )
        session = replica.sessions[session_id]
        dice = chance.random()
        if dice < 0.75:
            self.edit(replica, session_id)
        elif dice < 0.85:
            if replica.resolve(session_id, lambda _: chance.choice(("branch_a", "branch_b")), self.number):
                self.acknowledge(replica, session_id)
        elif dice < 0.9:
            graph = replica.graph_of(session.own)
            closed = not replica.versions[session.own].closed
            replica.commit(session_id, graph, closed, (), self.number)
            self.acknowledge(replica, session_id)
        elif dice < 0.95 and len(replica.sessions) < 8:
            origin = Origin("branch", session_id, session.own)
            replica.make_session(f"{session_id[:20]}-{self.number}", origin, session.own)
        else:
            self.merge_branch(replica, session_id)

    def edit(self, replica: Replica, session_id: str) -> None:
        chance = self.chance
        graph = replica.graph_of(replica.sessions[session_id].own)
        id = f"o{chance.randrange(self.weather.objects)}"
        if id not in graph:
            identity = {"id": id, "type": "Thing", "name": id}
            structure = {"a": self.number} if chance.random() < 0.3 else {}
            operation: dict[str, Any] = {"op": "add_object", "identity": identity, "structure": structure}
            if chance.random() < 0.3 and len(graph):
                target = chance.choice(sorted(graph.ids()))
                operation = {
                    "op": "add_relation",
                    "identity": {"id": f"r{self.number}", "type": "Relation", "name": "r"},
                    "participants": [target, target],
                    "relation_type": "near",
                    "structure": {},
                }
        elif chance.random() < 0.1:
            operation = {"op": "remove_object", "object_id": id}
        else:
            patch = {chance.choice(FIELDS): self.number}
            operation = {"op": "update_object", "object_id": id, "structure_patch": patch, "mode": "merge"}
        if replica.edit(session_id, [operation], self.number) is not None:
            self.figures.edits += 1
            self.acknowledge(replica, session_id)

    def merge_branch(self, replica: Replica, session_id: str) -> None:
        session = replica.sessions[session_id]
        source = self.chance.choice(sorted(replica.sessions))
        other = replica.sessions[source].own
        if replica.descends(session.own, other) or replica.versions[session.own].closed:
            return
        bases = run_sync(merge_bases(session.own, other), replica.ancestries)
        outcome = merge(
            [replica.graph_of(base) for base in bases],
            replica.graph_of(session.own),
            replica.graph_of(other),
            KEYS,
        )
        if isinstance(outcome, Merged) and changes(replica.graph_of(session.own), outcome.graph):
            replica.commit(session_id, outcome.graph, False, (other,), self.number)
            self.acknowledge(replica, session_id)

    def acknowledge(self, replica: Replica, session_id: str) -> None:
        version = replica.sessions[session_id].own
        self.acknowledged.append((session_id, version, replica.id, self.round))
        others = set(self.replicas) - {replica.id}
        self.unread[session_id, version] = (self.round, others)

    def settle_all(self) -> None:
        """Somebody settles what stands open, session by session, each time on another replica."""
        for _ in range(self.weather.replicas * 4):
            for session_id in sorted({id for r in self.replicas.values() for id in r.sessions}):
                replica = self.chance.choice(list(self.replicas.values()))
                if session_id in replica.sessions and len(replica.sessions[session_id].heads) > 1:
                    replica.resolve(session_id, lambda _: "branch_a", self.number)
            if not any(len(s.heads) > 1 for r in self.replicas.values() for s in r.sessions.values()):
                return
            self.until_equal()

    # ---- what must hold

    def check(self) -> None:
        """Nothing acknowledged is lost; one record a conflict; closed ones are closed everywhere."""
        for replica in self.replicas.values():
            for session_id, version, _, _ in self.acknowledged:
                heads = replica.sessions[session_id].heads
                assert any(replica.descends(head, version) for head in heads), "an edit was lost"
            assert not replica.refused
        self.check_records()
        self.figures.versions = (
            len(set().union(*(replica.versions for replica in self.replicas.values()))) - 1
        )

    def check_records(self) -> None:
        replicas = list(self.replicas.values())
        for session_id in replicas[0].sessions:
            for a in replicas:
                open_a = {
                    id: r for id, r in a.records.items() if r.session_id == session_id and r.state == "open"
                }
                heads = a.sessions[session_id].heads
                assert bool(open_a) == (len(heads) > 1), "records do not match the heads"
                if len(heads) == 1:
                    assert {r.sessions[session_id].own for r in replicas} == set(heads)
                for b in replicas:
                    other = b.sessions[session_id].own
                    if other == a.sessions[session_id].own:
                        continue
                    named = [id for id, r in open_a.items() if other.hex() in r.finding.about["source_heads"]]  # type: ignore[operator]
                    assert len(named) == 1, "a conflict has not exactly one record"
                    assert b.records[named[0]].state == "open", "the two sides name it differently"
        for replica in replicas:
            self.figures.conflicts = max(self.figures.conflicts, len(replica.records))
