"""The neighbourhood of some objects: breadth first along relations, within a bound."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import KObject


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Objects and relations around the seeds, nearest first.

    `truncated`: the bound cut it short; `next_seeds` are then objects to go on from.
    """

    objects: tuple[KObject, ...]
    relations: tuple[KObject, ...]
    truncated: bool
    next_seeds: tuple[str, ...]


def subgraph(
    graph: Graph,
    seed_ids: Sequence[str],
    depth: int,
    relation_types: Collection[str] | None,
    objects_max: int,
    bytes_max: int,
) -> Subgraph:
    """What lies within `depth` relations of the seeds: at most `objects_max` objects and relations, `bytes_max` bytes.

    Only relations of `relation_types` are followed (None: all); a seed that is a relation brings its participants.
    Raises ObjectNotFound for a seed that does not exist.
    """
    walk = _Walk(graph, relation_types, objects_max, bytes_max)
    level = [graph[seed].id for seed in dict.fromkeys(seed_ids)]
    for seed in level:
        walk.take(graph[seed])
    for _ in range(depth):
        if walk.full or not level:
            break
        level = walk.step(level)
    return walk.result()


class _Walk:
    def __init__(
        self, graph: Graph, relation_types: Collection[str] | None, objects_max: int, bytes_max: int
    ) -> None:
        self._graph = graph
        self._types = None if relation_types is None else frozenset(relation_types)
        self._objects_max = objects_max
        self._bytes_left = bytes_max
        self._taken: dict[str, KObject] = {}
        self._left_out: dict[str, None] = {}
        self.full = False

    def take(self, obj: KObject) -> bool:
        if obj.id in self._taken:
            return True
        if len(self._taken) >= self._objects_max or (obj.size > self._bytes_left and self._taken):
            self.full = True
            return False
        self._taken[obj.id] = obj
        self._bytes_left -= obj.size
        return True

    def step(self, level: Sequence[str]) -> list[str]:
        """Take the relations of `level` with their participants; returns the objects that are new."""
        found: list[str] = []
        for id in level:
            for relation in self._relations(id):
                fresh = [end for end in _ends(relation) if end not in self._taken and end in self._graph]
                if self.full or not self.take(relation):
                    self._left_out[id] = None
                    self.full = True
                    break
                for end in fresh:
                    if self.take(self._graph[end]):
                        found.append(end)
                    else:
                        self._left_out[end] = None
        return found

    def _relations(self, id: str) -> list[KObject]:
        own = self._graph[id]
        ids = set(self._graph.referrers("participant", id))
        relations = [self._graph[relation] for relation in sorted(ids)]
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
        taken = self._taken.values()
        return Subgraph(
            tuple(obj for obj in taken if not obj.is_relation),
            tuple(obj for obj in taken if obj.is_relation),
            self.full,
            tuple(list(self._left_out)[:100]),
        )


def _ends(relation: KObject) -> list[str]:
    ends = relation.structure.get("participants")
    return [end for end in ends if isinstance(end, str)] if isinstance(ends, list) else []
