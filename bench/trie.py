"""Does one changed object cost the same in a large graph as in a small one? Also times a full load."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from cks_runtime.model.canon import Hash
from cks_runtime.model.graph import EMPTY_GRAPH, Graph, load_graph
from cks_runtime.model.knowledge import KObject, make_object
from cks_runtime.model.trie import EMPTY_TRIE, new_nodes

COUNTS = (100, 5_000, 50_000)
TURNS = 300


def thing(number: int, mark: int = 0) -> KObject:
    structure: dict[str, object] = {"radius_km": number * 1.5, "mark": mark, "note": "x" * 60}
    if number % 4 == 0 and number:
        structure |= {"participants": [f"obj-{number - 1}", "obj-1"], "relation_type": "orbits"}
    return make_object(f"obj-{number}", "Body", f"Object {number}", structure)


def median_us(run: Callable[[int], object]) -> float:
    """Median time of a call, in microseconds."""
    spent: list[float] = []
    for turn in range(TURNS):
        start = time.perf_counter()
        run(turn)
        spent.append(time.perf_counter() - start)
    return median(spent) * 1e6


def change(graph: Graph, objects: list[KObject]) -> Callable[[int], object]:
    def run(turn: int) -> object:
        after = graph.with_changes({objects[turn].id: objects[turn]})
        return after.root, list(new_nodes(graph.trie, after.trie))

    return run


def load(root: Hash, blobs: dict[Hash, bytes]) -> Graph:
    loading = load_graph(root)
    wanted = next(loading)
    while True:
        try:
            wanted = loading.send({hash: blobs[hash] for hash in wanted})
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


def main() -> None:
    first = 0.0
    for count in COUNTS:
        objects = [thing(number) for number in range(count)]
        graph = EMPTY_GRAPH.with_changes({obj.id: obj for obj in objects})
        blobs = dict(new_nodes(EMPTY_TRIE, graph.trie)) | {obj.hash: obj.blob() for obj in objects}
        changed = [thing(turn * count // TURNS, mark=turn + 1) for turn in range(TURNS)]
        cost_us = median_us(change(graph, changed))
        first = first or cost_us
        after = graph.with_changes({changed[0].id: changed[0]})
        made = dict(new_nodes(graph.trie, after.trie))
        start = time.perf_counter()
        loaded = load(graph.root, blobs)
        load_ms = (time.perf_counter() - start) * 1000
        size = f"{len(made)} nodes, {sum(map(len, made.values()))} bytes"
        print(
            f"{count:>6} objects: one change {cost_us:6.0f} us (ratio {cost_us / first:4.1f}), {size};"
            f" full load {load_ms:6.0f} ms, {load_ms * 1000 / len(loaded):4.0f} us an object"
        )


if __name__ == "__main__":
    main()
