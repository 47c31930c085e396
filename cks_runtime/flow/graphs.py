"""Graphs and versions out of the store, through bounded caches of immutable values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, cast

import anyio
import anyio.to_thread

from cks_runtime.model.canon import Hash, digest
from cks_runtime.model.errors import VersionNotFound
from cks_runtime.model.graph import EMPTY_GRAPH, Graph, load_graph
from cks_runtime.model.history import Ancestry, Version, is_ancestor, merge_bases
from cks_runtime.model.nodes import RESTORE
from cks_runtime.store.blobs import get_ancestry, get_blobs, get_version
from cks_runtime.store.ports import Reader, Store

BLOB_BYTES_MAX = 64 * 1024 * 1024
GRAPHS_MAX = 8
VERSIONS_MAX = 20_000
_THREAD_FROM = 100  # a batch this large is parsed in a worker thread

T = TypeVar("T")
A = TypeVar("A")
Steps = Generator[list[Hash], Mapping[Hash, A], T]

_workers: anyio.CapacityLimiter | None = None


async def in_worker(work: Callable[[], T]) -> T:
    """Run pure Python work that may take longer than 50 ms in a thread, two at a time in this process."""
    global _workers
    if _workers is None:
        _workers = anyio.CapacityLimiter(2)
    return await anyio.to_thread.run_sync(work, limiter=_workers)


async def drive(steps: Steps[A, T], fetch: Callable[[Sequence[Hash]], Awaitable[Mapping[Hash, A]]]) -> T:
    """Run a sans-IO generator: what it asks for is fetched, a batch at a time."""
    try:
        wanted = next(steps)
        while True:
            answer = await fetch(wanted)
            if len(answer) < _THREAD_FROM:
                wanted = steps.send(answer)
            else:
                step = await in_worker(lambda answer=answer: _advance(steps, answer))  # type: ignore[misc]
                if isinstance(step, _Finished):
                    return cast(T, step.value)
                wanted = step
    except StopIteration as stop:
        return cast(T, stop.value)


class _Finished:
    """A generator's result, carried out of a thread where StopIteration cannot travel."""

    def __init__(self, value: object) -> None:
        self.value = value


def _advance(steps: Steps[A, T], answer: Mapping[Hash, A]) -> list[Hash] | _Finished:
    try:
        return steps.send(answer)
    except StopIteration as stop:
        return _Finished(stop.value)


class Lru:
    """A least-recently-used map bounded by the summed weight of its values."""

    def __init__(self, weight_max: int) -> None:
        self._items: OrderedDict[Hash, tuple[object, int]] = OrderedDict()
        self._weight_max = weight_max
        self.weight = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: Hash) -> object | None:
        item = self._items.get(key)
        if item is None:
            self.misses += 1
            return None
        self.hits += 1
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: Hash, value: object, weight: int = 1) -> None:
        old = self._items.pop(key, None)
        self.weight += weight - (old[1] if old else 0)
        self._items[key] = (value, weight)
        while self.weight > self._weight_max and len(self._items) > 1:
            _, (_, dropped) = self._items.popitem(last=False)
            self.weight -= dropped

    def newest(self) -> object | None:
        """The value used last, or None."""
        return next(reversed(self._items.values()))[0] if self._items else None

    def stats(self) -> dict[str, int]:
        return {"entries": len(self._items), "weight": self.weight, "hits": self.hits, "misses": self.misses}


class Graphs:
    """Reads graphs, versions and ancestries; everything it keeps is immutable, so nothing can be stale."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._graphs = Lru(GRAPHS_MAX)
        self._blobs = Lru(BLOB_BYTES_MAX)
        self._versions = Lru(VERSIONS_MAX)
        self._ancestries = Lru(VERSIONS_MAX)
        self._loading: dict[Hash, anyio.Lock] = {}

    @asynccontextmanager
    async def _reading(self, reader: Reader | None) -> AsyncIterator[Reader]:
        if reader is not None:
            yield reader
            return
        async with self._store.reader() as opened:
            yield opened

    async def graph(self, root: Hash, like: Graph | None = None, reader: Reader | None = None) -> Graph:
        """The graph of a root. What `like` (or the graph used last) shares with it is not read again.

        Raises DamagedBlob. Inside a unit pass the unit as `reader`.
        """
        if root == EMPTY_GRAPH.root:
            return EMPTY_GRAPH
        cached = self._graphs.get(root)
        if isinstance(cached, Graph):
            return cached
        if reader is not None:
            # no waiting for the lock here: its holder may need the connection that is in our hands
            return await self._load(root, like, reader)
        lock = self._loading.setdefault(root, anyio.Lock())
        try:
            async with lock:
                cached = self._graphs.get(root)
                return cached if isinstance(cached, Graph) else await self._load(root, like, None)
        finally:
            self._loading.pop(root, None)

    async def _load(self, root: Hash, like: Graph | None, reader: Reader | None) -> Graph:
        if like is None:
            newest = self._graphs.newest()
            like = newest if isinstance(newest, Graph) else None
        graph = await drive(load_graph(root, like), lambda wanted: self.blobs(wanted, reader))
        if len(graph) > _THREAD_FROM:
            await in_worker(graph.index)
        if not graph.damaged:
            self._graphs.put(root, graph)  # a damaged one is read again, so that a repair is seen
        return graph

    def remember(self, graph: Graph, version: Version, generation: int) -> None:
        """Keep what a commit just made."""
        self._graphs.put(graph.root, graph)
        self._versions.put(version.id, version)
        self._ancestries.put(version.id, Ancestry(version.parents, generation))

    async def blobs(self, wanted: Sequence[Hash], reader: Reader | None = None) -> dict[Hash, bytes]:
        """The blobs of these hashes that there are, through the cache, as stored: whoever parses one checks it."""
        found: dict[Hash, bytes] = {}
        missing = []
        for key in wanted:
            data = self._blobs.get(key)
            if isinstance(data, bytes):
                found[key] = data
            else:
                missing.append(key)
        if missing:
            async with self._reading(reader) as source:
                read = await get_blobs(source, missing)
            for key, data in read.items():
                if digest(data) == key:  # a damaged one is read again, so that a repair is seen
                    self._blobs.put(key, data, len(data) + 100)
            found.update(read)
        return found

    async def version(self, version_id: Hash, reader: Reader | None = None) -> Version:
        """One version. Raises VersionNotFound."""
        cached = self._versions.get(version_id)
        if isinstance(cached, Version):
            return cached
        async with self._reading(reader) as source:
            version = await get_version(source, version_id)
        self._versions.put(version_id, version)
        return version

    async def ancestries(self, wanted: Sequence[Hash], reader: Reader | None = None) -> dict[Hash, Ancestry]:
        """Parents and generation of versions. Raises VersionNotFound for one that is not stored."""
        found: dict[Hash, Ancestry] = {}
        for key in wanted:
            cached = self._ancestries.get(key)
            if isinstance(cached, Ancestry):
                found[key] = cached
        missing = [key for key in wanted if key not in found]
        if missing:
            async with self._reading(reader) as source:
                read = await get_ancestry(source, missing)
            for key, ancestry in read.items():
                self._ancestries.put(key, ancestry)
            found.update(read)
            for key in missing:
                if key not in read:
                    raise VersionNotFound(f"There is no version {key.hex()}.", RESTORE, version_id=key.hex())
        return found

    async def merge_bases(self, a: Hash, b: Hash, reader: Reader | None = None) -> tuple[Hash, ...]:
        """Every lowest common ancestor of two versions, sorted."""
        return await drive(merge_bases(a, b), lambda wanted: self.ancestries(wanted, reader))

    async def is_ancestor(self, old: Hash, new: Hash, reader: Reader | None = None) -> bool:
        """Whether `old` is `new` or one of its ancestors."""
        return await drive(is_ancestor(old, new), lambda wanted: self.ancestries(wanted, reader))

    def stats(self) -> dict[str, dict[str, int]]:
        """Sizes, hits and misses of the caches."""
        return {
            "graphs": self._graphs.stats(),
            "blobs": self._blobs.stats(),
            "versions": self._versions.stats(),
        }
