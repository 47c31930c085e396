"""Builders for tries in tests: contents, a trie spelled from its definition, a load that tells its asks."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from cks_runtime.model.canon import Hash, Json, canonical, digest
from cks_runtime.model.nodes import LEAF_MAX
from cks_runtime.model.trie import EMPTY_TRIE, Trie, load, new_nodes

Blobs = dict[Hash, bytes]


def key(id: str) -> str:
    return sha256(id.encode()).hexdigest()


def value(seed: object) -> Hash:
    return sha256(repr(seed).encode()).digest()


def crowd(prefix: str, count: int) -> list[str]:
    """Ids whose keys begin alike, so that few of them make a deep trie."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        if key(f"c{number}").startswith(prefix):
            found.append(f"c{number}")
        number += 1
    return found


CROWD = crowd("00", 50)
ODD = ["", "é", "e\u0301", "\U0001f680", "\ue000", '\x00\x1f"\\/\u2028', "x" * 512]
POOL = [*CROWD, *ODD, *(f"n{i}" for i in range(60))]


def at_once(entries: Mapping[str, Hash]) -> Trie:
    return EMPTY_TRIE.update(entries)


def blobs_of(trie: Trie) -> Blobs:
    return dict(new_nodes(EMPTY_TRIE, trie))


def put(blobs: Blobs, value: Json) -> Hash:
    blob = canonical(value)
    blobs[digest(blob)] = blob
    return digest(blob)


def spelled(entries: Mapping[str, Hash], blobs: Blobs, depth: int = 0) -> Hash:
    """The trie written down from its definition alone."""
    if len(entries) <= LEAF_MAX:
        return put(blobs, {"entries": {id: value.hex() for id, value in entries.items()}})
    children: dict[str, Json] = {}
    for digit in "0123456789abcdef":
        below = {id: value for id, value in entries.items() if key(id)[depth] == digit}
        if below:
            children[digit] = [spelled(below, blobs, depth + 1).hex(), len(below)]
    return put(blobs, {"children": children})


def run(root: Hash, blobs: Mapping[Hash, bytes], like: Trie | None = None) -> tuple[Trie, list[list[Hash]]]:
    """Load, and what was asked for."""
    asked: list[list[Hash]] = []
    loading = load(root, like)
    try:
        wanted = next(loading)
        while True:
            asked.append(wanted)
            wanted = loading.send({hash: blobs[hash] for hash in wanted if hash in blobs})
    except StopIteration as stop:
        return stop.value, asked


def numbered(count: int) -> dict[str, Hash]:
    return {f"obj-{i}": value(i) for i in range(count)}
