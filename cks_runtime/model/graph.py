"""A body of knowledge as an immutable value: objects by id, their Merkle trie, and derived indexes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from rpds import HashTrieMap, HashTrieSet

from cks_runtime.model import trie as tries
from cks_runtime.model.canon import Hash
from cks_runtime.model.errors import DamagedBlob, ObjectNotFound
from cks_runtime.model.knowledge import KObject, object_from_blob
from cks_runtime.model.references import Role, references
from cks_runtime.model.trie import EMPTY_ROOT, EMPTY_TRIE, REQUEST_MAX, Trie

Change = tuple[str, KObject | None, KObject | None]

_REWRITE: Final = (
    "Write the object anew or remove it, or restore it from a replica or a copy; the others are usable."
)

_STRIDE: Final = 1_000  # entries an extension call takes, since no other thread runs meanwhile

_CHEAP: Final = 1_000  # objects of another graph that can be dropped without a thought

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")
_Index: TypeAlias = "HashTrieMap[_K, HashTrieSet[str]]"
_Reference = tuple[Role, str]


class Graph:
    """Objects by id. Never changed: `with_changes` gives another graph that shares all but what differs.

    The indexes behind `of_type`, `types` and `referrers` are made once, when first asked for or when the
    first change is derived, and every later graph derives its own from them. Equal content is equal.

    An object whose blob could not be read is in `damaged`: it counts and can be replaced or removed, but whoever
    asks for it gets its DamagedBlob; all others work.
    """

    __slots__ = ("_by_reference", "_by_type", "_objects", "damaged", "trie")

    def __init__(
        self, trie: Trie, objects: HashTrieMap[str, KObject], damaged: Mapping[str, DamagedBlob] | None = None
    ) -> None:
        self.trie = trie
        self._objects = objects
        self.damaged: Mapping[str, DamagedBlob] = damaged or {}
        self._by_type: _Index[str] | None = None
        self._by_reference: _Index[_Reference] | None = None

    @property
    def root(self) -> Hash:
        """The hash that names the whole content."""
        return self.trie.root

    def __len__(self) -> int:
        return len(self._objects) + len(self.damaged)

    def __contains__(self, id: object) -> bool:
        return id in self._objects or id in self.damaged

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.trie == other.trie

    def __hash__(self) -> int:
        return hash(self.trie)

    def __getitem__(self, id: str) -> KObject:
        """The object of this id. Raises ObjectNotFound, or DamagedBlob for one that could not be read."""
        found = self.get(id)
        if found is None:
            raise ObjectNotFound(f"no object {id!r}", "Check the id, or search for the object.", object_id=id)
        return found

    def get(self, id: str) -> KObject | None:
        """The object of this id, or None. Raises DamagedBlob for one that could not be read."""
        if id in self.damaged:
            raise self.damaged[id].with_traceback(None)
        return self._objects.get(id)

    def readable(self, id: str) -> KObject | None:
        """The object of this id; None where there is none or it could not be read."""
        return self._objects.get(id)

    def ids(self) -> Collection[str]:
        """Every id, in no promised order."""
        return [*self._objects.keys(), *self.damaged] if self.damaged else self._objects.keys()

    def objects(self) -> list[KObject]:
        """Every object, sorted by id. Raises DamagedBlob when one could not be read."""
        for error in self.damaged.values():
            raise error.with_traceback(None)
        return sorted(self._objects.values(), key=lambda obj: obj.id)

    def of_type(self, type: str) -> Collection[str]:
        """Ids of the objects of this type, in no promised order."""
        return self._types_index().get(type) or ()

    def types(self) -> Mapping[str, int]:
        """How many objects there are of each type, sorted by type."""
        return {type: len(ids) for type, ids in sorted(self._types_index().items())}

    def referrers(self, role: Role, target: str) -> Collection[str]:
        """Ids of the objects that refer to `target`, there or not, in `role`, in no promised order."""
        return self._references_index().get((role, target)) or ()

    def with_changes(self, changes: Mapping[str, KObject | None]) -> Graph:
        """The graph with each object put under its own id, None removing it; this graph when nothing differs.

        Costs O(k log N) for k changes, once this graph has its indexes. Raises ValueError for an object under
        an id that is not its own.
        """
        net: list[Change] = []
        for id, after in changes.items():
            before = self._objects.get(id)
            if after is not None and after.id != id:
                raise ValueError(f"object {after.id!r} cannot stand under the id {id!r}")
            if id in self.damaged or _hash(before) != _hash(after):
                net.append((id, before, after))
        if not net:
            return self
        # A change is checked through its result's indexes; made on ours first, they outlive a refused change.
        self.index()
        return self._derived(self.trie.update({id: _hash(after) for id, _, after in net}), net)

    def _derived(
        self, trie: Trie, net: list[Change], unread: Mapping[str, DamagedBlob] | None = None
    ) -> Graph:
        """The graph of `trie`, which differs from ours by `net` and `unread`, with those indexes that we have."""
        objects = _put(self._objects, ((id, after) for id, _, after in net if after is not None))
        for id, _, after in net:
            if after is None:
                objects = objects.discard(id)
        changed = {id for id, _, _ in net}
        kept = {id: error for id, error in self.damaged.items() if id not in changed}
        graph = Graph(trie, objects, {**kept, **(unread or {})})
        if self._by_type is not None:
            graph._by_type = _reindexed(self._by_type, net, _type_keys)
        if self._by_reference is not None:
            graph._by_reference = _reindexed(self._by_reference, net, references)
        return graph

    def index(self) -> None:
        """Make the indexes now, as work for another thread; they are made when first needed otherwise."""
        self._types_index()
        self._references_index()

    def _types_index(self) -> _Index[str]:
        if self._by_type is None:
            self._by_type = _indexed(self._objects.values(), _type_keys)
        return self._by_type

    def _references_index(self) -> _Index[_Reference]:
        if self._by_reference is None:
            self._by_reference = _indexed(self._objects.values(), references)
        return self._by_reference


def _hash(obj: KObject | None) -> Hash | None:
    return None if obj is None else obj.hash


def _type_keys(obj: KObject) -> tuple[str]:
    return (obj.type,)


def _indexed(objects: Iterable[KObject], keys: Callable[[KObject], Iterable[_K]]) -> _Index[_K]:
    """The index of `objects` by `keys`, made from scratch."""
    found: dict[_K, list[str]] = {}
    for obj in objects:
        for key in keys(obj):
            found.setdefault(key, []).append(obj.id)
    return _put(HashTrieMap(), ((key, _joined(HashTrieSet(), ids)) for key, ids in found.items()))


def _reindexed(index: _Index[_K], net: list[Change], keys: Callable[[KObject], Iterable[_K]]) -> _Index[_K]:
    """The index after `net`: touches only the keys that an object gained or lost."""
    gained: dict[_K, list[str]] = {}
    lost: dict[_K, list[str]] = {}
    for id, before, after in net:
        old = dict.fromkeys(keys(before)) if before else {}
        new = dict.fromkeys(keys(after)) if after else {}
        for key in old.keys() - new.keys():
            lost.setdefault(key, []).append(id)
        for key in new.keys() - old.keys():
            gained.setdefault(key, []).append(id)
    for key, gone in lost.items():
        ids = index[key]
        for id in gone:
            ids = ids.discard(id)
        index = index.insert(key, ids) if ids else index.discard(key)
    return _put(index, [(key, _joined(index.get(key) or HashTrieSet(), ids)) for key, ids in gained.items()])


def _joined(known: HashTrieSet[str], ids: list[str]) -> HashTrieSet[str]:
    for start in range(0, len(ids), _STRIDE):
        known = known.update(ids[start : start + _STRIDE])
    return known


def _put(known: HashTrieMap[_K, _V], entries: Iterable[tuple[_K, _V]]) -> HashTrieMap[_K, _V]:
    pending = iter(entries)
    while page := list(islice(pending, _STRIDE)):
        known = known.update(page)
    return known


EMPTY_GRAPH: Final = Graph(EMPTY_TRIE, HashTrieMap())


def changes(a: Graph, b: Graph) -> list[Change]:
    """Every object that differs, as (id, in `a`, in `b`), sorted by id; the cost follows the difference.

    An object that could not be read is None, as if it were not there.
    """
    found = ((id, a._objects.get(id), b._objects.get(id)) for id, _, _ in tries.diff(a.trie, b.trie))
    return sorted(found, key=lambda change: change[0])


def load_graph(root: Hash, like: Graph | None = None) -> Generator[list[Hash], Mapping[Hash, bytes], Graph]:
    """The graph named `root`, read through the caller: yields the hashes it needs, is sent their blobs.

    First the trie's nodes, then the objects that `like` does not have, at most `REQUEST_MAX` a request.
    Raises DamagedBlob, naming the node, for a node that is missing, altered or not what it stands for; such an
    object is in the graph's `damaged`.
    """
    if root == EMPTY_ROOT:
        return EMPTY_GRAPH
    # An empty graph of its own, which has no indexes to derive: they are made when they are asked for.
    like = like or Graph(EMPTY_TRIE, HashTrieMap())
    trie = yield from tries.load(root, like.trie)
    if trie is like.trie:
        return like
    if len(like) > _CHEAP and 2 * tries.shared(like.trie, trie) < len(like):
        like = Graph(EMPTY_TRIE, HashTrieMap())  # to take from it would cost more than to begin anew
    differing = [(id, after) for id, _, after in tries.diff(like.trie, trie)]
    net: list[Change] = [(id, like._objects.get(id), None) for id, after in differing if after is None]
    wanted = [(id, after) for id, after in differing if after is not None]
    unread: dict[str, DamagedBlob] = {}
    for start in range(0, len(wanted), REQUEST_MAX):
        page = wanted[start : start + REQUEST_MAX]
        blobs = yield [hash for _, hash in page]
        for id, hash in page:
            try:
                net.append((id, like._objects.get(id), _object(id, hash, blobs.get(hash))))
            except DamagedBlob as error:
                unread[id] = error
                net.append((id, like._objects.get(id), None))
    return like._derived(trie, net, unread)


def _object(id: str, hash: Hash, blob: bytes | None) -> KObject:
    """The object that stands under `id`, from its stored form. Raises DamagedBlob with the id."""
    named = {"object_hash": hash.hex(), "object_id": id}
    if blob is None:
        raise DamagedBlob(f"object {id!r} ({hash.hex()}) is missing", _REWRITE, **named)
    try:
        obj = object_from_blob(blob, hash)
    except DamagedBlob as error:
        raise DamagedBlob(f"object {id!r}: {error.message}", _REWRITE, **named) from error
    if obj.id != id or not isinstance(obj.type, str) or not isinstance(obj.structure, dict):
        raise DamagedBlob(f"object {id!r}: {hash.hex()} names something else", _REWRITE, **named)
    return obj
