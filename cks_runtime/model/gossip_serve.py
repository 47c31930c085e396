"""The other end of a walk: which versions a peer lacks, what they changed, and which part of the map did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from heapq import heappop, heappush

from cks_runtime.model.canon import Hash
from cks_runtime.model.gossip_asks import Asking, Stored, ancestries, versions
from cks_runtime.model.gossip_messages import EXTRA_BYTES, PAGE_BYTES
from cks_runtime.model.history import Version
from cks_runtime.model.nodes import Branch, Children, Leaf, parse_node
from cks_runtime.model.trie import EMPTY_ROOT, Trie


def missing_history(heads: Iterable[Hash], have: Iterable[Hash], limit: int) -> Asking[list[Hash]]:
    """Up to `limit` ancestors of `heads` (themselves included) that are not ancestors of `have`, newest first.

    Versions that are not here are passed over. Looks at the younger of the two histories only: by falling
    generation, so that a version is judged after all that descend from it.
    """
    had = set(have)
    wanted = set(heads) - had
    queue: list[tuple[int, Hash]] = []
    known = dict((yield from ancestries(sorted(wanted | had))))
    for id, ancestry in known.items():
        heappush(queue, (-ancestry.generation, id))
    waiting = len(wanted & known.keys())
    found: list[Hash] = []
    while queue and waiting and len(found) < limit:
        _, id = heappop(queue)
        is_had = id in had
        if not is_had:
            waiting -= 1
            found.append(id)
        parents = known[id].parents
        fresh = [parent for parent in parents if parent not in known]
        known.update((yield from ancestries(fresh)) if fresh else {})
        for parent in fresh:
            heappush(queue, (-known[parent].generation, parent))
            if not is_had:
                waiting += 1
                wanted.add(parent)
        if is_had:
            for parent in parents:
                if parent not in had:
                    had.add(parent)
                    waiting -= parent in wanted and parent not in fresh
    return found


def what_changed(found: Mapping[Hash, Version]) -> Asking[list[bytes]]:
    """The nodes and objects that these versions have and their first parents have not, in their order, as far as
    `EXTRA_BYTES` goes: whoever lacks the versions most likely lacks just these.
    """
    above = [version.parents[0] for version in found.values() if version.parents]
    known = {**(yield from versions(above)), **found} if above else dict(found)
    sent: dict[Hash, bytes] = {}
    room = EXTRA_BYTES
    for version in found.values():
        if version.root == EMPTY_ROOT:
            continue
        parent = known.get(version.parents[0]) if version.parents else None
        before = parent.root if parent is not None else EMPTY_ROOT
        room = yield from _differing(version.root, before, sent, room)
        if room <= 0:
            break
    return list(sent.values())


def _differing(root: Hash, before: Hash, sent: dict[Hash, bytes], room: int) -> Asking[int]:
    """Add what stands under `root` and not at the same place under `before`; returns the room that is left."""
    level: list[tuple[Hash, Hash | None]] = [(root, None if before == EMPTY_ROOT else before)]
    level = [] if root == before else level
    while level and room > 0:
        level = level[:200]
        asked = {hash for pair in level for hash in pair if hash is not None}
        blobs: Mapping[Hash, bytes] = yield Stored(tuple(asked))
        below: list[tuple[Hash, Hash | None]] = []
        objects: set[Hash] = set()
        for hash, twin in level:
            if hash not in blobs or (twin is not None and twin not in blobs):
                continue  # damaged here; the peer will ask, and learn it
            node = parse_node(hash, blobs[hash])
            other = parse_node(twin, blobs[twin]) if twin is not None else None
            room -= 0 if hash in sent else len(blobs[hash])
            sent[hash] = blobs[hash]
            below += _children(node, other)
            objects |= _objects(node, other) - sent.keys()
        if objects and room > 0:
            stored: Mapping[Hash, bytes] = yield Stored(tuple(sorted(objects)[:200]))
            for hash, data in stored.items():
                if len(data) <= room:
                    room -= len(data)
                    sent[hash] = data
        level = below
    return room


def _children(node: Leaf | Children, other: Leaf | Children | None) -> Iterator[tuple[Hash, Hash | None]]:
    if isinstance(node, Leaf):
        return
    twins = other if isinstance(other, dict) else {}
    for digit, (hash, _) in node.items():
        twin = twins.get(digit)
        if twin is None or twin[0] != hash:
            yield hash, None if twin is None else twin[0]


def _objects(node: Leaf | Children, other: Leaf | Children | None) -> set[Hash]:
    if not isinstance(node, Leaf):
        return set()
    return set(node.entries.values()) - (set(other.entries.values()) if isinstance(other, Leaf) else set())


def map_part(trie: Trie, ids: Iterable[str], entries: Mapping[str, bytes]) -> tuple[bytes, ...]:
    """The nodes of a map on the way to these ids, and their entries, as far as a quarter of a page goes."""
    sent: dict[Hash, bytes] = {}
    size = 0
    for id in ids:
        key = sha256(id.encode()).hexdigest()
        node, depth = trie.top, 0
        path = [node]
        while isinstance(node, Branch) and key[depth] in node.children:
            node, depth = node.children[key[depth]], depth + 1
            path.append(node)
        for part in path:
            if part.hash not in sent:
                sent[part.hash] = part.blob()
        hash = trie.get(id)
        if hash is not None and id in entries:
            sent[hash] = entries[id]
        size = sum(map(len, sent.values()))
        if size > PAGE_BYTES // 4:
            break
    return tuple(sent.values())
