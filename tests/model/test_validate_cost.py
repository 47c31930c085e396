"""Validation looks only at what a change can affect, also beside an object that thousands refer to."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from building import KEYS, accepted, graph, proof, relation, step, thing

from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import KObject
from cks_runtime.model.validate import check_change


class Watched:
    """A graph that counts what is asked of it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.asked = 0

    def get(self, id: str) -> KObject | None:
        self.asked += 1
        return self.graph.get(id)

    def readable(self, id: str) -> KObject | None:
        self.asked += 1
        return self.graph.readable(id)

    def __getitem__(self, id: str) -> KObject:
        self.asked += 1
        return self.graph[id]

    def __contains__(self, id: object) -> bool:
        self.asked += 1
        return id in self.graph

    def referrers(self, role: str, target: str) -> Collection[str]:
        found = self.graph.referrers(role, target)
        self.asked += 1 + len(found)
        return found


@pytest.fixture(scope="module")
def hub() -> Graph:
    spokes = [thing(f"o{i}") for i in range(100)]
    joined = [relation(f"r{i}", "hub", f"o{i % 100}") for i in range(10_000)]
    older = [step(f"s{i}", "hub", "hub", superseded_by="best") for i in range(1_000)]
    return accepted(graph(thing("hub"), step("best", "hub"), *spokes, *joined, *older), *proof(thing("hub")))


@pytest.mark.parametrize(
    "change",
    [
        {"new": relation("new", "hub", "o1")},
        {"new": relation("new", "hub", "o1", kind="verified_by")},
        {"r5": None},
        {"r5": relation("r5", "o1", "hub")},
        {"hub": thing("hub", f=1)},
        {"best": step("best", "hub", confidence=0.9)},
        {"s5": step("s5", "hub", superseded_by=None)},
        {"new": step("new", "hub", "best", "hub")},
    ],
)
def test_a_change_beside_a_hub_does_not_walk_it(hub, change):
    after = Watched(hub.with_changes(change))
    assert check_change([hub], after, change, KEYS) == []
    assert after.asked < 40
