"""The Merkle trie: an immutable map of id to content hash whose root names exactly its content.

The key of an entry is the SHA-256 of its id in UTF-8, read as hex digits from the left. A set of at most
`LEAF_MAX` entries is a leaf whatever its depth; a larger one is a branch on the next digit. So the shape
follows from the content alone, equal content has an equal root whatever the order of edits, and a change of
k of N entries makes O(k log N) new nodes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from cks_runtime.model.canon import Hash
from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.nodes import LEAF_MAX, Branch, Children, Leaf, Node, damaged, parse_node

DEPTH_MAX: Final = 64  # a key has this many digits
REQUEST_MAX: Final = 500


class Trie:
    """An immutable map of id to hash. Two are equal when their roots are, that is when their content is."""

    __slots__ = ("_top",)

    def __init__(self, top: Node) -> None:
        self._top = top

    @property
    def root(self) -> Hash:
        """The hash that names the whole content."""
        return self._top.hash

    @property
    def top(self) -> Node:
        """The topmost node."""
        return self._top

    def __len__(self) -> int:
        return self._top.count

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self.get(id) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trie) and (self._top is other._top or self.root == other.root)

    def __hash__(self) -> int:
        return hash(self.root)

    def get(self, id: str) -> Hash | None:
        """The hash kept for `id`, or None."""
        node = self._top
        if isinstance(node, Branch):
            key = sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
            depth = 0
            while isinstance(node, Branch):
                child = node.children.get(key[depth])
                if child is None:
                    return None
                node, depth = child, depth + 1
        return node.entries.get(id)

    def items(self) -> Iterator[tuple[str, Hash]]:
        """Every entry, in no promised order."""
        return _entries(self._top)

    def update(self, changes: Mapping[str, Hash | None]) -> Trie:
        """The trie with `changes` made; None removes. The same trie when nothing differs.

        Raises UnicodeEncodeError for an id that is not Unicode text (a lone surrogate).
        """
        keyed = [(_key(id), id, value) for id, value in changes.items()]
        top = _update(self._top, 0, keyed)
        return self if top is self._top else Trie(top)


EMPTY_TRIE: Final = Trie(Leaf({}))
EMPTY_ROOT: Final = EMPTY_TRIE.root

_Keyed = tuple[str, str, Hash | None]


def _key(id: str) -> str:
    return sha256(id.encode("utf-8")).hexdigest()


def _entries(node: Node) -> Iterator[tuple[str, Hash]]:
    pending = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, Leaf):
            yield from node.entries.items()
        else:
            pending.extend(node.children.values())


def _build(entries: dict[str, Hash], depth: int) -> Node:
    """The canonical node of `entries`, all of which have the first `depth` digits of their keys in common."""
    if len(entries) <= LEAF_MAX:
        return Leaf(entries)
    return _split([(_key(id), id, value) for id, value in entries.items()], depth)


def _split(keyed: Iterable[tuple[str, str, Hash]], depth: int) -> Branch:
    parts: dict[str, list[tuple[str, str, Hash]]] = {}
    for entry in keyed:
        parts.setdefault(entry[0][depth], []).append(entry)
    children: dict[str, Node] = {}
    for digit, part in parts.items():
        if len(part) > LEAF_MAX:
            children[digit] = _split(part, depth + 1)
        else:
            children[digit] = Leaf({id: value for _, id, value in part})
    return Branch(children)


def _update(node: Node, depth: int, keyed: list[_Keyed]) -> Node:
    """The node with `keyed` changes made, itself when nothing differs; may be empty."""
    if isinstance(node, Leaf):
        entries = dict(node.entries)
        for _, id, value in keyed:
            if value is None:
                entries.pop(id, None)
            else:
                entries[id] = value
        return node if entries == node.entries else _build(entries, depth)
    parts: dict[str, list[_Keyed]] = {}
    for change in keyed:
        parts.setdefault(change[0][depth], []).append(change)
    children = dict(node.children)
    for digit, part in parts.items():
        child = _update(children.get(digit, _EMPTY_LEAF), depth + 1, part)
        if child.count:
            children[digit] = child
        else:
            children.pop(digit, None)
    return node if _same(children, node.children) else _joined(Branch(children))


_EMPTY_LEAF: Final = Leaf({})


def _same(a: Mapping[str, Node], b: Mapping[str, Node]) -> bool:
    return len(a) == len(b) and all(b.get(digit) is child for digit, child in a.items())


def _joined(branch: Branch) -> Node:
    """The branch, or the leaf it has to be once it holds few enough entries."""
    return branch if branch.count > LEAF_MAX else Leaf(dict(_entries(branch)))


def new_nodes(old: Trie, new: Trie) -> Iterator[tuple[Hash, bytes]]:
    """The nodes (hash, blob) of `new` that do not stand at the same place in `old`: what a commit stores.

    Of the empty trie against itself that is nothing, so its one node is never asked for either.
    """
    pending: list[tuple[Node | None, Node]] = [(old.top, new.top)]
    while pending:
        before, node = pending.pop()
        if _equal(before, node):
            continue
        if isinstance(node, Branch):
            known: Mapping[str, Node] = before.children if isinstance(before, Branch) else {}
            pending.extend((known.get(digit), child) for digit, child in node.children.items())
        yield node.hash, node.blob()


def diff(a: Trie, b: Trie) -> Iterator[tuple[str, Hash | None, Hash | None]]:
    """Every id whose hash differs, as (id, hash in `a`, hash in `b`), in no promised order.

    The cost follows the number of differences: a part that both have is skipped by its hash.
    """
    pending: list[tuple[Node | None, Node | None]] = [(a.top, b.top)]
    while pending:
        left, right = pending.pop()
        if _equal(left, right):
            continue
        if isinstance(left, Branch) and isinstance(right, Branch):
            digits = left.children.keys() | right.children.keys()
            pending.extend((left.children.get(digit), right.children.get(digit)) for digit in sorted(digits))
            continue
        # A leaf holds few entries, so a branch beside it differs in nearly all of its own.
        before = dict(_entries(left)) if left else {}
        after = dict(_entries(right)) if right else {}
        yield from ((id, value, after.get(id)) for id, value in before.items() if after.get(id) != value)
        yield from ((id, None, value) for id, value in after.items() if id not in before)


def shared(a: Trie, b: Trie) -> int:
    """How many entries both have alike; the cost follows the smaller part that differs."""
    found = 0
    pending: list[tuple[Node, Node]] = [(a.top, b.top)]
    while pending:
        left, right = pending.pop()
        if _equal(left, right):
            found += left.count
        elif isinstance(left, Branch) and isinstance(right, Branch):
            digits = left.children.keys() & right.children.keys()
            pending.extend((left.children[digit], right.children[digit]) for digit in digits)
        elif isinstance(left, Leaf) and isinstance(right, Leaf):
            found += len(left.entries.items() & right.entries.items())
    return found


def _equal(a: Node | None, b: Node | None) -> bool:
    return a is b or (a is not None and b is not None and a.count == b.count and a.hash == b.hash)


@dataclass(frozen=True, slots=True)
class _Place:
    """A wanted node: the digits that lead to it, and what its parent says of it (None for the root)."""

    hash: Hash
    digits: str
    count: int | None
    parent: Hash | None
    known: Node | None  # what stands at this place in the trie the result is likened to


def load(root: Hash, like: Trie | None = None) -> Generator[list[Hash], Mapping[Hash, bytes], Trie]:
    """The trie named `root`, read through the caller: yields the hashes it needs, is sent their blobs.

    Reads a level at a time, at most `REQUEST_MAX` hashes a request; parts that stand at the same place in
    `like` are taken from there. Every node is checked by itself and against its place. Raises DamagedBlob,
    naming the node, for one that is missing, altered or anything but the one canonical node of its content.
    `EMPTY_ROOT` asks nothing.
    """
    like = like or EMPTY_TRIE
    for known in (EMPTY_TRIE, like):
        if root == known.root:
            return known
    made: dict[Hash, Leaf] = {}
    plans: list[tuple[Hash, dict[str, Hash | Node]]] = []
    level = [_Place(root, "", None, None, like.top)]
    asked = {root}
    while level:
        below: list[_Place] = []
        for start in range(0, len(level), REQUEST_MAX):
            places = level[start : start + REQUEST_MAX]
            blobs = yield [place.hash for place in places]
            for place in places:
                node = _read(place, blobs.get(place.hash))
                if isinstance(node, Leaf):
                    made[place.hash] = node
                else:
                    plans.append((place.hash, _plan(place, node, asked, below)))
        level = below
    return Trie(_assemble(root, made, plans))


def _plan(place: _Place, children: Children, asked: set[Hash], below: list[_Place]) -> dict[str, Hash | Node]:
    """What the branch at `place` is made of: nodes at hand, and hashes, whose places are added to `below`."""
    known = place.known.children if isinstance(place.known, Branch) else {}
    plan: dict[str, Hash | Node] = {}
    for digit, (hash, count) in children.items():
        twin = known.get(digit)
        if twin is not None and twin.hash == hash and twin.count == count:
            plan[digit] = twin
            continue
        # An entry has one place, so a node has; without this a few blobs could spell a tree without end.
        if hash in asked:
            raise damaged(place.hash, f"its child {hash.hex()} stands in more than one place")
        asked.add(hash)
        plan[digit] = hash
        below.append(_Place(hash, place.digits + digit, count, place.hash, twin))
    return plan


def _assemble(
    root: Hash, made: Mapping[Hash, Leaf], plans: list[tuple[Hash, dict[str, Hash | Node]]]
) -> Node:
    nodes: dict[Hash, Node] = dict(made)
    for hash, plan in reversed(plans):  # children were planned after their parents
        children = {
            digit: nodes[child] if isinstance(child, bytes) else child for digit, child in plan.items()
        }
        nodes[hash] = Branch(children, hash)
    return nodes[root]


def _read(place: _Place, blob: bytes | None) -> Leaf | Children:
    """The leaf, or the children of the branch, that `blob` is, checked against its place; or DamagedBlob."""
    node = parse_node(place.hash, blob)
    if isinstance(node, Leaf):
        count = node.count
        for id in node.entries:
            if not _key(id).startswith(place.digits):
                raise damaged(place.hash, f"entry {quoted(id)} does not belong under {place.digits!r}")
    else:
        count = sum(below for _, below in node.values())
        if len(place.digits) >= DEPTH_MAX:
            raise damaged(place.hash, f"a branch below {DEPTH_MAX} digits")
    if place.count is not None and place.count != count and place.parent is not None:
        reason = f"it gives its child {place.hash.hex()} {place.count} entries, the child has {count}"
        raise damaged(place.parent, reason)
    return node
