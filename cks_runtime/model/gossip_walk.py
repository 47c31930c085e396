"""One direction of an exchange: learn a peer's map, fetch what is missing, check it, and have it stored.

The same steps run on both ends: the dialling replica sends their wants as requests, the dialled one as answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from cks_runtime.model import trie as tries
from cks_runtime.model.canon import Hash, NotCanonical, canonical, normalize
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.errors import CksError, DamagedBlob
from cks_runtime.model.gossip_asks import (
    Apply,
    Asking,
    Keep,
    KeptVersion,
    RefusedAmong,
    Stored,
    ancestries,
    graphs,
    lacking,
    versions,
)
from cks_runtime.model.gossip_heads import SessionHeads, session_heads_from_blob
from cks_runtime.model.gossip_messages import (
    HISTORY_MAX,
    WANT_MAX,
    GossipRefused,
    WantBlobs,
    WantHistory,
)
from cks_runtime.model.graph import EMPTY_GRAPH, Graph, load_graph
from cks_runtime.model.graph import changes as graph_changes
from cks_runtime.model.history import Ancestry, Version, generation_after, version_from_blob
from cks_runtime.model.merge_fields import OBJECT_BYTES_MAX
from cks_runtime.model.nodes import Leaf, parse_node
from cks_runtime.model.records import Keyring
from cks_runtime.model.trie import EMPTY_ROOT, Trie
from cks_runtime.model.validate import check_change

SESSIONS_A_BATCH: Final = 40
HISTORY_FIRST: Final = 16
OBJECTS_HELD_MAX: Final = 16 * 1_048_576
VERSION_START: Final = b'{"author":'
"""How the canonical JSON of a version begins, and of no node or object."""
DEPTH_MAX: Final = 100
DEPTH_AROUND: Final = 1  # the object itself; its structure is level 1


@dataclass(slots=True)
class Pulled:
    """What one direction of an exchange brought; `refused` names sessions and why they were left alone."""

    sessions: int = 0
    versions: int = 0
    blobs: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


Extras = dict[Hash, bytes]
"""Blobs that came without being asked for, by the names they prove by themselves."""


def pull(
    mine: Trie, known: Mapping[str, SessionHeads], root: Hash, extras: Mapping[Hash, bytes], keys: Keyring
) -> Asking[Pulled]:
    """Bring everything from a peer whose map has this root, given our own map and its entries.

    Garbage in one session leaves that session alone and is told in the result. Raises GossipRefused when the map
    itself cannot be read.
    """
    pulled = Pulled()
    entries = yield from _entries(mine, root, dict(extras), pulled)
    for batch in _batches(entries):
        try:
            yield from _sessions(batch, known, keys, pulled)
        except (GossipRefused, DamagedBlob) as error:
            if len(batch) == 1:
                pulled.refused.append((batch[0].session_id, _reason(error)))
                continue
            for entry in batch:
                try:
                    yield from _sessions([entry], known, keys, pulled)
                except (GossipRefused, DamagedBlob) as own:
                    pulled.refused.append((entry.session_id, _reason(own)))
    return pulled


def _reason(error: GossipRefused | DamagedBlob) -> str:
    return error.message if isinstance(error, CksError) else error.reason


def _batches(entries: list[SessionHeads]) -> Iterator[list[SessionHeads]]:
    for start in range(0, len(entries), SESSIONS_A_BATCH):
        yield entries[start : start + SESSIONS_A_BATCH]


def _entries(mine: Trie, root: Hash, extras: Extras, pulled: Pulled) -> Asking[list[SessionHeads]]:
    """The peer's entries that differ from ours, by session id; those that are none are told in `pulled`."""
    try:
        theirs = yield from _map(mine, root, extras)
        wanted = {id: entry for id, _, entry in tries.diff(mine, theirs) if entry is not None}
        blobs = yield from fetch_all(list(wanted.values()), extras)
    except DamagedBlob as error:
        raise GossipRefused(f"its map of heads is damaged: {error.message}") from error
    entries: list[SessionHeads] = []
    for id, hash in sorted(wanted.items()):
        try:
            entry = session_heads_from_blob(blobs[hash], hash)
        except DamagedBlob as error:
            pulled.refused.append((id, error.message))
            continue
        if entry.session_id == id:
            entries.append(entry)
        else:
            pulled.refused.append((id, f"its entry is that of session {entry.session_id!r}"))
    return entries


def _map(mine: Trie, root: Hash, extras: Extras) -> Asking[Trie]:
    steps = tries.load(root, mine)
    try:
        wanted = next(steps)
        while True:
            wanted = steps.send((yield from fetch_all(wanted, extras)))
    except StopIteration as stop:
        theirs: Trie = stop.value
        return theirs


# ---- from the peer


def fetch_all(hashes: Collection[Hash], extras: Extras) -> Asking[dict[Hash, bytes]]:
    """All of these blobs, page by page; each is named by its own hash. Raises GossipRefused when one is not had."""
    found = {hash: extras[hash] for hash in hashes if hash in extras}
    left = [hash for hash in dict.fromkeys(hashes) if hash not in found]
    while left:
        asked = left[:WANT_MAX]
        answer: Mapping[Hash, bytes] = yield WantBlobs(tuple(asked))
        if answer.keys().isdisjoint(asked):
            raise GossipRefused(f"it does not have {asked[0].hex()}, which it offered")
        found.update((hash, answer[hash]) for hash in asked if hash in answer)
        left = [hash for hash in left if hash not in found]
    return found


def _history(
    entries: list[SessionHeads], known: Mapping[str, SessionHeads], extras: Extras
) -> Asking[dict[Hash, Version]]:
    """Every version that we lack of these sessions' histories; what comes along with them goes into `extras`."""
    offered = dict.fromkeys(head for entry in entries for head in entry.heads)
    frontier = sorted((yield from lacking("version", offered)))
    have = {head for e in entries if e.session_id in known for head in known[e.session_id].heads}
    forks = {entry.origin.fork_version for entry in entries}
    have |= forks - (yield from lacking("version", forks))
    found: dict[Hash, Version] = {}
    limit = max(HISTORY_FIRST, 2 * len(entries))
    while frontier:
        asked = tuple(frontier[:WANT_MAX])
        answer: Mapping[Hash, bytes] = yield WantHistory(asked, tuple(sorted(have)[:WANT_MAX]), limit)
        fresh = {}
        for id, data in answer.items():
            if not data.startswith(VERSION_START):
                extras[id] = data
            elif id not in found:
                fresh[id] = version_from_blob(data, id)
        if fresh.keys().isdisjoint(asked):
            raise GossipRefused(f"it does not have version {asked[0].hex()}, which it offered")
        found.update(fresh)
        parents = {parent for version in fresh.values() for parent in version.parents}
        wanted = {id for id in (*frontier, *parents) if id not in found}
        frontier = sorted((yield from lacking("version", wanted)))
        limit = min(limit * 4, HISTORY_MAX)
    return (yield from _reached(found, offered))


def _reached(found: Mapping[Hash, Version], heads: Iterable[Hash]) -> Asking[dict[Hash, Version]]:
    """The lacking ones of `found`, parents before children; what no head leads to was not asked for."""
    lacked = yield from lacking("version", found)
    ordered: dict[Hash, Version] = {}
    path = [(head, False) for head in heads if head in lacked]
    while path:
        id, complete = path.pop()
        if id in ordered:
            continue
        if complete:
            ordered[id] = found[id]
            continue
        path.append((id, True))
        path.extend((parent, False) for parent in found[id].parents if parent in lacked)
    return ordered


def _content(
    roots: Iterable[Hash], objects_done: dict[Hash, bytes], extras: Extras
) -> Asking[dict[Hash, bytes]]:
    """The trie nodes of these roots that we lack; the objects that only they name go into `objects_done`."""
    nodes: dict[Hash, bytes] = {}
    objects: set[Hash] = set()
    level = {root for root in roots if root != EMPTY_ROOT}
    while level:
        wanted = yield from lacking("node", sorted(level))
        blobs = yield from fetch_all(sorted(wanted), extras)
        nodes.update(blobs)
        level = set()
        for hash, data in blobs.items():
            node = parse_node(hash, data)
            if isinstance(node, Leaf):
                objects.update(node.entries.values())
            else:
                level.update(child for child, _ in node.values() if child not in nodes)
    left = sorted((yield from lacking("object", sorted(objects))))
    while left:
        fetched = yield from fetch_all(left[:WANT_MAX], extras)
        for hash, data in fetched.items():
            check_object(hash, data)
        objects_done.update(fetched)
        left = left[WANT_MAX:]
        if sum(map(len, objects_done.values())) > OBJECTS_HELD_MAX:
            yield Keep((), {}, dict(objects_done))
            objects_done.clear()
    return nodes


def check_object(hash: Hash, data: bytes) -> None:
    """Raises DamagedBlob unless these bytes are canonical JSON within the caps that hold for every replica."""
    if len(data) > OBJECT_BYTES_MAX:
        raise _damaged(hash, f"{len(data)} bytes; at most {OBJECT_BYTES_MAX} are taken from other replicas")
    try:
        value = normalize(orjson.loads(data), depth_max=DEPTH_MAX + DEPTH_AROUND)
    except orjson.JSONDecodeError as error:
        raise _damaged(hash, f"not JSON: {error}") from None
    except NotCanonical as error:
        raise _damaged(hash, str(error)) from None
    if canonical(value) != data or not isinstance(value, dict) or value.keys() != {"identity", "structure"}:
        raise _damaged(hash, "not an object in canonical form")
    identity = value["identity"]
    if not isinstance(identity, dict) or identity.keys() != {"id", "type", "name"}:
        raise _damaged(hash, "its identity is not id, type and name")


def _damaged(hash: Hash, reason: str) -> DamagedBlob:
    return DamagedBlob(f"object {hash.hex()} is refused: {reason}", object_hash=hash.hex())


# ---- checking


def _sessions(
    entries: list[SessionHeads], known: Mapping[str, SessionHeads], keys: Keyring, pulled: Pulled
) -> Asking[None]:
    """Fetch, check and store what these entries lead to, then have each applied."""
    extras: Extras = {}
    history = yield from _history(entries, known, extras)
    objects: dict[Hash, bytes] = {}
    nodes = yield from _content({version.root for version in history.values()}, objects, extras)
    if history:
        checked = yield from _checked(history, {**nodes, **objects}, keys)
        yield Keep(tuple(checked), nodes, objects)
    pulled.versions += len(history)
    pulled.blobs += len(nodes) + len(objects)
    for entry in entries:
        yield Apply(entry)
        pulled.sessions += 1


def _checked(
    history: Mapping[Hash, Version], fetched: Mapping[Hash, bytes], keys: Keyring
) -> Asking[list[KeptVersion]]:
    """Every new version with its graph read through and its ERRORs, measured against its parents."""
    above = sorted({p for version in history.values() for p in version.parents if p not in history})
    known = dict((yield from ancestries(above)))
    for id in above:
        if id not in known:
            raise GossipRefused(f"version {id.hex()} is missing from the history it offered")
    ground = _Ground()
    for id in above:
        yield from _learn(id, ground)
    kept: list[KeptVersion] = []
    for id, version in history.items():
        like = ground.graphs[version.parents[0]] if version.parents else None
        graph = yield from _graph(version.root, like, fetched)
        sound = tuple(dict.fromkeys(s for parent in version.parents for s in ground.sound[parent]))
        errors = _errors(graph, [ground.graphs[s] for s in sound], keys)
        ground.graphs[id] = graph
        ground.sound[id] = sound if errors else (id,)
        known[id] = Ancestry(version.parents, generation_after(known[p] for p in version.parents))
        kept.append(KeptVersion(version, known[id].generation, tuple(errors)))
    return kept


class _Ground:
    """What new versions are measured against: graphs, and for each version the nearest ones without ERRORs
    (itself, or those of its parents).
    """

    def __init__(self) -> None:
        self.graphs: dict[Hash, Graph] = {}
        self.sound: dict[Hash, tuple[Hash, ...]] = {}


def _learn(id: Hash, ground: _Ground) -> Asking[None]:
    """Read a stored version, and where it was refused those below it that were not."""
    refused: dict[Hash, Version] = {}
    level = {id}
    sound: set[Hash] = set()
    while level:
        asked = tuple(sorted(level))
        bad: set[Hash] = yield RefusedAmong(asked)
        sound |= level - bad
        refused.update((yield from versions(sorted(bad))) if bad else {})
        level = {p for b in bad for p in refused[b].parents if p not in refused and p not in sound}
    ground.sound[id] = tuple(sorted(sound))
    ground.graphs.update((yield from graphs(sorted({id, *sound} - ground.graphs.keys()))))


def _graph(root: Hash, like: Graph | None, fetched: Mapping[Hash, bytes]) -> Asking[Graph]:
    """The graph of a root from what was fetched and what is stored; every node is checked in its place."""
    steps = load_graph(root, like)
    try:
        wanted = next(steps)
        while True:
            stored = tuple(hash for hash in wanted if hash not in fetched)
            found = dict((yield Stored(stored)) if stored else {})
            found.update((hash, fetched[hash]) for hash in wanted if hash in fetched)
            wanted = steps.send(found)
    except StopIteration as stop:
        graph: Graph = stop.value
        return graph


def _errors(graph: Graph, sound: list[Graph], keys: Keyring) -> list[Diagnostic]:
    first = sound[0] if sound else EMPTY_GRAPH
    touched = [id for id, _, _ in graph_changes(first, graph)]
    return check_change(sound, graph, touched, keys)
