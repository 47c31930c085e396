"""The neighbourhood of some objects: breadth first along relations, page by page within a bound."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import KObject

SEEDS_MAX = 100


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A page of the objects and relations around the seeds, nearest first.

    `next_skip`: where the next page begins, None at the end. `next_seeds`: what this page had to leave out, to go
    on from instead; relations stand for themselves and what they join.
    """

    objects: tuple[KObject, ...]
    relations: tuple[KObject, ...]
    next_skip: int | None
    next_seeds: tuple[str, ...]


def subgraph(
    graph: Graph,
    seed_ids: Sequence[str],
    depth: int,
    relation_types: Collection[str] | None,
    objects_max: int,
    bytes_max: int,
    skip: int = 0,
) -> Subgraph:
    """What lies within `depth` relations of the seeds, without the first `skip` of it.

    A page has at most `objects_max` objects and relations and `bytes_max` bytes, but at least one object. Only
    relations of `relation_types` are followed (None: all); a seed that is a relation brings its participants.
    Raises ObjectNotFound for a seed that does not exist.
    """
    walk = _Walk(graph, relation_types, objects_max, bytes_max, skip)
    seeds = [graph[seed] for seed in dict.fromkeys(seed_ids)]
    level, joined = [seed.id for seed in seeds], list[str]()
    for seed in seeds:
        walk.take(seed.id)
        if depth and seed.is_relation:
            # with what it joins, so that whoever goes on from `next_seeds` misses no participant
            joined += walk.ends(seed)
    for _ in range(depth):
        if walk.full or not level:
            break
        level, joined = [*joined, *walk.step(level)], []
    return walk.result()


class _Walk:
    """Takes objects in an order that depends on the arguments alone, so that pages neither overlap nor leave gaps."""

    def __init__(
        self,
        graph: Graph,
        relation_types: Collection[str] | None,
        objects_max: int,
        bytes_max: int,
        skip: int,
    ) -> None:
        self._graph = graph
        self._types = None if relation_types is None else frozenset(relation_types)
        self._objects_max = objects_max
        self._bytes_left = bytes_max
        self._skip = skip
        self._passed: set[str] = set()
        self._taken: list[KObject] = []
        self._left_out: dict[str, None] = {}
        self.full = False

    def take(self, id: str) -> bool:
        """Whether the object was new; one that does not fit is left out, and all that come after it."""
        if id in self._passed:
            return False
        obj = self._graph[id]
        if len(self._passed) >= self._skip:
            crowded = len(self._taken) >= self._objects_max or (obj.size > self._bytes_left and self._taken)
            if self.full or crowded:
                self.full = True
                self._left_out[id] = None
                return False
            self._taken.append(obj)
            self._bytes_left -= obj.size
        self._passed.add(id)
        return True

    def step(self, level: Sequence[str]) -> list[str]:
        """Take the relations of `level` with their participants; returns the objects that are new."""
        found: list[str] = []
        for id in level:
            for relation in self._relations(id):
                self.take(relation.id)
                found += self.ends(relation)
                if len(self._left_out) >= SEEDS_MAX:
                    return found
        return found

    def ends(self, relation: KObject) -> list[str]:
        """Take what a relation joins and can be read, once it is taken itself; returns the objects that are new."""
        if relation.id not in self._passed:
            return []
        return [end for end in _ends(relation) if self._graph.readable(end) and self.take(end)]

    def _relations(self, id: str) -> list[KObject]:
        own = self._graph[id]
        relations = [self._graph[relation] for relation in sorted(self._graph.referrers("participant", id))]
        if own.is_relation:
            relations.insert(0, own)
        return [
            relation
            for relation in relations
            if self._types is None
            or relation is own
            or relation.structure.get("relation_type") in self._types
        ]

    def result(self) -> Subgraph:
        return Subgraph(
            tuple(obj for obj in self._taken if not obj.is_relation),
            tuple(obj for obj in self._taken if obj.is_relation),
            len(self._passed) if self.full else None,
            tuple(list(self._left_out)[:SEEDS_MAX]),
        )


def _ends(relation: KObject) -> list[str]:
    ends = relation.structure.get("participants")
    return [end for end in ends if isinstance(end, str)] if isinstance(ends, list) else []
