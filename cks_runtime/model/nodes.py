"""Nodes of the Merkle trie: their stored form, and the check that refuses every other.

A node is stored as its canonical JSON under the hash of its bytes:

    leaf    {"entries": {id: hash in hex}}
    branch  {"children": {hex digit: [hash in hex, entries below]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from cks_runtime.model.canon import Hash, Json, canonical, digest
from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.errors import DamagedBlob

LEAF_MAX: Final = 32
RESTORE: Final = "Restore it from a replica or a copy of the database."

_DIGITS: Final = frozenset("0123456789abcdef")


class Leaf:
    """At most `LEAF_MAX` entries. Never changed once made; its hash is computed when first asked for."""

    __slots__ = ("_hash", "count", "entries")

    def __init__(self, entries: Mapping[str, Hash], known_hash: Hash | None = None) -> None:
        self.entries = entries
        self.count = len(entries)
        self._hash = known_hash

    @property
    def hash(self) -> Hash:
        """Hash of `blob()`."""
        if self._hash is None:
            self._hash = digest(self.blob())
        return self._hash

    def blob(self) -> bytes:
        """Stored form of the node."""
        entries: dict[str, Json] = {id: value.hex() for id, value in self.entries.items()}
        data = orjson.dumps({"entries": entries}, option=orjson.OPT_SORT_KEYS)
        # Among ASCII ids orjson's order is RFC 8785's, and a hash needs no care.
        return data if data.isascii() else canonical({"entries": entries})


class Branch:
    """More than `LEAF_MAX` entries, split by the next digit of their keys; no child is empty."""

    __slots__ = ("_hash", "children", "count")

    def __init__(self, children: Mapping[str, Node], known_hash: Hash | None = None) -> None:
        self.children = children
        self.count: int = sum(child.count for child in children.values())
        self._hash = known_hash

    @property
    def hash(self) -> Hash:
        """Hash of `blob()`; computes the hashes below that are not known yet."""
        if self._hash is None:
            self._hash = digest(self.blob())
        return self._hash

    def blob(self) -> bytes:
        """Stored form of the node."""
        return _branch_blob({digit: (child.hash, child.count) for digit, child in self.children.items()})


Node = Leaf | Branch
Children = dict[str, tuple[Hash, int]]  # digit: hash, entries below


def _branch_blob(children: Mapping[str, tuple[Hash, int]]) -> bytes:
    shown = {digit: (child.hex(), count) for digit, (child, count) in children.items()}
    # Of hex digits and whole numbers below 2**53 orjson's bytes are RFC 8785's.
    return orjson.dumps({"children": shown}, option=orjson.OPT_SORT_KEYS)


def count_below(node: Leaf | Children) -> int:
    """How many entries lie below a parsed node."""
    return node.count if isinstance(node, Leaf) else sum(count for _, count in node.values())


def damaged(hash: Hash, reason: str) -> DamagedBlob:
    """The error for the trie node `hash`."""
    return DamagedBlob(f"node {hash.hex()} is damaged: {reason}", RESTORE, node_hash=hash.hex())


def parse_node(hash: Hash, blob: bytes | None) -> Leaf | Children:
    """The leaf, or the children (digit: hash, entries below) of the branch, whose stored form is `blob`.

    Checks all that can be seen without its place in a trie. Raises DamagedBlob.
    """
    if blob is None:
        raise damaged(hash, "it is missing")
    if digest(blob) != hash:
        raise damaged(hash, "its bytes have another hash")
    try:
        value = orjson.loads(blob)
    except orjson.JSONDecodeError as error:
        raise damaged(hash, f"not JSON: {error}") from None
    try:
        match value:
            case {"entries": dict(entries)} if len(value) == 1:
                node: Leaf | Children = _leaf(entries, hash)
            case {"children": dict(children)} if len(value) == 1:
                node = _children(children)
            case _:
                raise ValueError("neither a leaf nor a branch")
    except ValueError as error:
        raise damaged(hash, str(error)) from None
    # One comparison refuses spaces, key order, escapes, doubled keys and upper-case hex.
    if blob != (node.blob() if isinstance(node, Leaf) else _branch_blob(node)):
        raise damaged(hash, "not in canonical form")
    return node


def _leaf(entries: dict[str, object], hash: Hash) -> Leaf:
    if len(entries) > LEAF_MAX:
        raise ValueError(f"a leaf of {len(entries)} entries")
    return Leaf({id: _hash_of(value) for id, value in entries.items()}, hash)


def _children(children: dict[str, object]) -> Children:
    result: Children = {}
    total = 0
    for digit, value in children.items():
        if digit not in _DIGITS:
            raise ValueError(f"child {quoted(digit)} is no hex digit")
        match value:
            case [hash, int(count)] if not isinstance(count, bool) and count > 0:
                result[digit] = (_hash_of(hash), count)
                total += count
            case _:
                raise ValueError(f"child {quoted(digit)} is not [hash, entries below]")
    if total <= LEAF_MAX:
        raise ValueError(f"a branch of {total} entries")
    if total >= 2**53:
        raise ValueError("more entries than can be counted")
    return result


def _hash_of(value: object) -> Hash:
    if not isinstance(value, str) or len(value) != 64:
        raise ValueError("a hash is not 64 hex digits")
    return bytes.fromhex(value)
