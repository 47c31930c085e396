"""The other end of a walk: which versions a peer lacks, as far as one page goes."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from cks_runtime.model.canon import Hash
from cks_runtime.model.gossip_asks import Asking, ancestries


def missing_history(heads: Iterable[Hash], have: Iterable[Hash], limit: int) -> Asking[list[Hash]]:
    """Up to `limit` ancestors of `heads` (themselves included) that are not ancestors of `have`, newest first.

    Versions that are not here are passed over. Looks at the younger of the two histories only: by falling
    generation, so that a version is judged after all that descend from it.
    """
    had = set(have)
    wanted = set(heads) - had
    queue: list[tuple[int, Hash]] = []
    known = dict((yield from ancestries(sorted(wanted | had))))
    for id, ancestry in known.items():
        heappush(queue, (-ancestry.generation, id))
    waiting = len(wanted & known.keys())
    found: list[Hash] = []
    while queue and waiting and len(found) < limit:
        _, id = heappop(queue)
        is_had = id in had
        if not is_had:
            waiting -= 1
            found.append(id)
        parents = known[id].parents
        fresh = [parent for parent in parents if parent not in known]
        known.update((yield from ancestries(fresh)) if fresh else {})
        for parent in fresh:
            heappush(queue, (-known[parent].generation, parent))
            if not is_had:
                waiting += 1
                wanted.add(parent)
        if is_had:
            for parent in parents:
                if parent not in had:
                    had.add(parent)
                    waiting -= parent in wanted and parent not in fresh
    return found
