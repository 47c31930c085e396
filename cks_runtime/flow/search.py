"""Searching a session: full text over all objects, kept to those its head holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cks_runtime.flow.graphs import in_worker
from cks_runtime.flow.sessions import Sessions
from cks_runtime.model.canon import Hash, digest
from cks_runtime.model.errors import DamagedBlob, InvalidParameter
from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import KObject, object_from_blob
from cks_runtime.model.words import match_expression, object_text, query_words, snippet
from cks_runtime.store import search as rows
from cks_runtime.store.ports import Store

PAGE = 500
SCANNED_MAX = 20_000
WORDS_MAX = 20


@dataclass(frozen=True, slots=True)
class Hit:
    """One found object; a higher `score` is better."""

    obj: KObject
    score: float
    snippet: str


@dataclass(frozen=True, slots=True)
class Hits:
    """A page of hits, best first; the next begins at `next_skip` (None at the end) in the same mode.

    `every`: each hit has every word; False where no object has them all, so those with any are shown.
    """

    hits: tuple[Hit, ...]
    next_skip: int | None
    every: bool = True


class Search:
    """Full text over the heads of sessions."""

    def __init__(self, store: Store, sessions: Sessions) -> None:
        self._store = store
        self._sessions = sessions

    async def find(self, session_id: str, query: str, limit: int, skip: int = 0, every: bool = True) -> Hits:
        """Objects of the session's head with every word of the query (else with any), the last word as a prefix.

        Raises InvalidParameter for a query without a word. Objects are indexed when first needed.
        """
        words = query_words(query)[:WORDS_MAX]
        if not words:
            raise InvalidParameter(
                f"query {query[:80]!r} has no word to search for.",
                "Give one word or more.",
                argument="query",
            )
        _, graph = await self._sessions.head(session_id)
        await self._index()
        hits = await self._scan(graph, words, limit, skip, every)
        if every and skip == 0 and not hits.hits and len(words) > 1:
            return await self._scan(graph, words, limit, 0, every=False)
        return hits

    async def _scan(self, graph: Graph, words: list[str], limit: int, skip: int, every: bool) -> Hits:
        expression = match_expression(words, every)
        hits: list[Hit] = []
        at = skip
        while at < skip + SCANNED_MAX:
            async with self._store.reader() as reader:
                found = await rows.search_objects(reader, expression, at, PAGE)
            for object_hash, data, score in found:
                at += 1
                obj = _held(graph, object_hash, data)
                if obj is not None:
                    hits.append(Hit(obj, round(score, 4), snippet(obj, words)))
                    if len(hits) == limit:
                        return Hits(tuple(hits), at, every)
            if len(found) < PAGE:
                return Hits(tuple(hits), None, every)
        return Hits(tuple(hits), at, every)

    async def _index(self) -> None:
        while True:
            async with self._store.reader() as reader:
                mark, fresh = await rows.unindexed(reader)
            if not fresh:
                return
            texts = await in_worker(lambda fresh=fresh: _texts(fresh))  # type: ignore[misc]
            async with self._store.unit() as unit:
                await rows.put_texts(unit, mark, fresh[-1][0], texts)


def _texts(fresh: Iterable[tuple[int, str, bytes]]) -> list[tuple[int, str]]:
    return [(number, _text(data)) for number, kind, data in fresh if kind == "object"]


def _text(data: bytes) -> str:
    try:
        return object_text(object_from_blob(data, digest(data)))
    except DamagedBlob:
        return ""  # whoever reads the object is told; the index goes on


def _held(graph: Graph, object_hash: Hash, data: bytes) -> KObject | None:
    """The object of this blob if the graph holds exactly this version of it."""
    try:
        found = object_from_blob(data, object_hash)
    except DamagedBlob:
        return None
    return found if graph.trie.get(found.id) == object_hash else None
