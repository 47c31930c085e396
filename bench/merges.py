"""Does a three-way merge cost what differs, or what there is?"""

from __future__ import annotations

import anyio

from bench.report import line, medians_ms
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.knowledge import make_object
from cks_runtime.model.merge import Merged, merge
from cks_runtime.model.records import Keyring

KEYS = Keyring.of(b"k" * 32)
CHANGES = 100


def sides(count: int) -> tuple[Graph, Graph, Graph]:
    """A base of `count` objects, and two lines that changed other fields of the same hundred."""
    fields = {"f": 0, "g": 0}
    base = EMPTY_GRAPH.with_changes(
        {f"o{i}": make_object(f"o{i}", "Concept", "X", fields) for i in range(count)}
    )
    lines = [
        base.with_changes(
            {f"o{i}": make_object(f"o{i}", "Concept", "X", {**fields, key: 1}) for i in range(CHANGES)}
        )
        for key in "fg"
    ]
    return base, lines[0], lines[1]


async def main() -> None:
    small, large = sides(1_000), sides(10_000)

    async def run(graphs: tuple[Graph, Graph, Graph]) -> None:
        base, ours, theirs = graphs
        assert isinstance(merge([base], ours, theirs, KEYS), Merged)

    small_ms, large_ms = await medians_ms(30, lambda _: run(small), lambda _: run(large))
    ratio = large_ms / small_ms
    line(
        "merge of 100 changes at 10,000 objects / at 1,000", ratio, "<= 3 x", ratio <= 3, f"{large_ms:.1f} ms"
    )


if __name__ == "__main__":
    anyio.run(main)
