"""Which graphs hold certain objects: found through their roots, reading only the nodes on the way."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from hashlib import sha256

from cks_runtime.model.canon import Hash
from cks_runtime.model.nodes import Leaf, parse_node

BATCH = 500


def holders(
    roots: Collection[Hash], wanted: Mapping[str, Collection[Hash] | None]
) -> Generator[list[Hash], Mapping[Hash, bytes], dict[Hash, dict[str, Hash]]]:
    """For each root the wanted ids that it holds, with the hash there: one of those named, any where None is.

    A sans-IO generator: asks for node blobs by hash, a level at a time; a node that several graphs share is read
    once. Raises DamagedBlob.
    """
    keys = {id: sha256(id.encode()).hexdigest() for id in wanted}
    found: dict[Hash, dict[str, Hash]] = {root: {} for root in roots}
    # where each node hangs: (node, depth) -> [(root, ids that lead here)]
    level: dict[Hash, list[tuple[Hash, list[str]]]] = {root: [(root, list(wanted))] for root in found}
    depth = 0
    while level:
        below: dict[Hash, list[tuple[Hash, list[str]]]] = {}
        names = list(level)
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            blobs = yield batch
            for name in batch:
                node = parse_node(name, blobs.get(name))
                for root, ids in level[name]:
                    if isinstance(node, Leaf):
                        found[root].update(_matching(node.entries, ids, wanted))
                        continue
                    for id in ids:
                        child = node.get(keys[id][depth])
                        if child is None:
                            continue
                        places = below.setdefault(child[0], [])
                        if places and places[-1][0] == root:
                            places[-1][1].append(id)
                        else:
                            places.append((root, [id]))
        level = below
        depth += 1
    return found


def _matching(
    entries: Mapping[str, Hash], ids: Collection[str], wanted: Mapping[str, Collection[Hash] | None]
) -> dict[str, Hash]:
    found = {}
    for id in ids:
        value, named = entries.get(id), wanted[id]
        if value is not None and (named is None or value in named):
            found[id] = value
    return found
