"""A whole exchange of two replicas, from either end: digests, then one brings what it lacks, then the other.

The replica that dials sends requests; the one that is dialled answers, and has its own wants answered in turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cks_runtime.model.canon import Hash, digest
from cks_runtime.model.gossip_asks import Asking, versions
from cks_runtime.model.gossip_heads import SessionHeads
from cks_runtime.model.gossip_messages import (
    Blobs,
    Digest,
    Done,
    GossipRefused,
    Message,
    StaleTurn,
    Turn,
    Want,
    WantBlobs,
    WantHistory,
    page,
)
from cks_runtime.model.gossip_rules import heard_told
from cks_runtime.model.gossip_serve import map_part, missing_history, what_changed
from cks_runtime.model.gossip_walk import Pulled, pull
from cks_runtime.model.records import Keyring
from cks_runtime.model.trie import Trie


@dataclass(frozen=True, slots=True)
class View:
    """A replica's map at one moment: the trie, the entries its hashes name, and the sessions that changed last."""

    trie: Trie
    entries: Mapping[str, SessionHeads]
    recent: tuple[str, ...] = ()

    def part(self) -> tuple[bytes, ...]:
        """The part of the map that a peer most likely lacks."""
        named = {id: self.entries[id].blob() for id in self.recent if id in self.entries}
        return map_part(self.trie, named, named)


@dataclass(frozen=True, slots=True)
class LookAtMap:
    """Our map now. Answer: View."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to the peer. Answer: the Message it replies."""

    message: Message


@dataclass(frozen=True, slots=True)
class Hear:
    """The peer told who it is and whom it heard of. Answer: None."""

    sender: str
    heard: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Find:
    """Blobs of any kind (map nodes, entries, versions, nodes, objects). Answer: Mapping[Hash, bytes], those had."""

    hashes: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What an exchange did, as the dialling side saw it."""

    equal: bool
    pulled: Pulled = field(default_factory=Pulled)
    in_sync: bool = True


def dial(me: str, heard: Mapping[str, int], exchange: str, keys: Keyring) -> Asking[Exchanged]:
    """Exchange with one peer. Raises GossipRefused when it does not keep to the protocol."""
    view: View = yield LookAtMap()
    theirs: Message = yield Send(Digest(me, view.trie.root, heard_told(heard, exchange)))
    if not isinstance(theirs, Digest):
        raise GossipRefused("it answered a digest with something else")
    yield Hear(theirs.sender, theirs.heard)
    if theirs.root == view.trie.root:
        return Exchanged(True)
    pulled = yield from _asking_by_request(
        pull(view.trie, view.entries, theirs.root, by_hash(theirs.blobs), keys)
    )
    view = yield LookAtMap()
    root = theirs.root
    if root != view.trie.root:
        root = yield from _give_turns(Turn(exchange, 0, view.trie.root, view.part()))
        view = yield LookAtMap()
    return Exchanged(False, pulled, root == view.trie.root)


def _asking_by_request(steps: Asking[Pulled]) -> Asking[Pulled]:
    """Send what the walk wants of the peer as requests; pass on what it asks of the store."""
    answer: object = None
    while True:
        try:
            ask = steps.send(answer)
        except StopIteration as stop:
            pulled: Pulled = stop.value
            return pulled
        if isinstance(ask, WantBlobs | WantHistory):
            reply: Message = yield Send(ask)
            if not isinstance(reply, Blobs):
                raise GossipRefused("it answered a want with something else")
            answer = by_hash(reply.blobs)
        else:
            answer = yield ask


def by_hash(blobs: Iterable[bytes]) -> dict[Hash, bytes]:
    """Blobs under the names they prove by themselves."""
    return {digest(blob): blob for blob in blobs}


def _give_turns(turn: Turn) -> Asking[Hash]:
    """Answer what the peer wants of us until it wants nothing more; its root then."""
    while True:
        reply: Message = yield Send(turn)
        match reply:
            case Done(theirs):
                return theirs
            case WantBlobs() | WantHistory():
                blobs = yield from serve(reply)
                turn = Turn(turn.exchange, turn.step + 1, turn.root, blobs)
            case _:
                raise GossipRefused("it answered a turn with something else")


def serve(want: Want) -> Asking[tuple[bytes, ...]]:
    """One page of what a peer wants; what is not here is left out."""
    if isinstance(want, WantHistory):
        found = yield from missing_history(want.heads, want.have, want.limit)
        known = yield from versions(found)
        ordered = {id: known[id] for id in found if id in known}
        changed = yield from what_changed(ordered)
        return page([*(version.blob() for version in ordered.values()), *changed])
    had: Mapping[Hash, bytes] = yield Find(want.hashes)
    return page(had[hash] for hash in want.hashes if hash in had)


@dataclass(slots=True)
class Conversation:
    """Our wants towards a replica that dialled us, waiting for its next turn."""

    exchange: str
    steps: Asking[Pulled]
    step: int = 0


def answer(
    message: Message, me: str, heard: Mapping[str, int], open_now: Conversation | None, keys: Keyring
) -> Asking[tuple[Message, Conversation | None]]:
    """Our reply to a request, and the conversation that stays open with its sender.

    One conversation a peer; a new one takes the old one's place. Raises GossipRefused for what is no request, and
    StaleTurn for a turn that is not the next of the conversation, which stays open.
    """
    match message:
        case Digest():
            view: View = yield LookAtMap()
            yield Hear(message.sender, message.heard)
            part = () if message.root == view.trie.root else view.part()
            return Digest(me, view.trie.root, heard_told(heard, message.sender), part), open_now
        case WantBlobs() | WantHistory():
            return Blobs((yield from serve(message))), open_now
        case Turn(exchange=exchange, step=0, root=root, blobs=blobs):
            view = yield LookAtMap()
            steps = pull(view.trie, view.entries, root, by_hash(blobs), keys)
            return (yield from _go_on(Conversation(exchange, steps), None))
        case Turn(exchange=exchange, step=step, blobs=blobs):
            if open_now is None or (open_now.exchange, open_now.step) != (exchange, step):
                raise StaleTurn("this turn is not the next of any conversation")
            return (yield from _go_on(open_now, by_hash(blobs)))
        case _:
            raise GossipRefused("this is no request")


def _go_on(
    conversation: Conversation, found: Mapping[Hash, bytes] | None
) -> Asking[tuple[Message, Conversation | None]]:
    value: object = found
    while True:
        try:
            ask = conversation.steps.send(value)
        except StopIteration:
            view: View = yield LookAtMap()
            return Done(view.trie.root), None
        if isinstance(ask, WantBlobs | WantHistory):
            conversation.step += 1
            return ask, conversation
        value = yield ask
