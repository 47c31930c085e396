"""What becomes of a session's heads: taken at once, merged, left side by side, or refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from cks_runtime.model.canon import Hash, Json
from cks_runtime.model.claims import Finding
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.gossip_asks import Ancestries, Asking, ancestries, graphs, through, versions
from cks_runtime.model.gossip_heads import join_heads
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.history import (
    FIRST_VERSION,
    Ancestry,
    Version,
    generation_after,
    is_ancestor,
    merge_bases,
    merge_closed,
    merge_version,
)
from cks_runtime.model.merge import Conflicted, MergeConflict, Merged, merge
from cks_runtime.model.records import Keyring

CRISS_CROSS_MAX: Final = 4
"""How deep bases of bases are merged."""
_VIRTUAL: Final = b"\0" * 32
"""Stands for a merge that is not finished yet where its merge bases are looked for."""


def line_id(session_id: str, replica_id: str) -> str:
    """The name under which the other side of a conflict is read."""
    return f"{session_id}@{replica_id}"


@dataclass(frozen=True, slots=True)
class GossipFinding(Finding):
    """Heads that do not come together by themselves; `about` is what a resolver needs to know."""

    about: Mapping[str, Json] = field(default_factory=dict)

    def body(self) -> dict[str, Json]:
        return {"object_ids": [*self.object_ids], **self.about}


Clashes: TypeAlias = MutableMapping[tuple[Hash, Hash], tuple[tuple[MergeConflict, ...], tuple[Hash, ...]]]
"""What pairs of heads were found to be: their conflicts (none: they merge) and bases. Heads never change, so
neither do these; a driver keeps them to save merging the same pair every round."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A session as one replica knows it.

    `own` is its head (None: it has no such session), `heads` the maximal heads with their holders, its own
    among them unless another descends from it; `refused` those with ERRORs, which ones they are with them.
    """

    session_id: str
    own: Hash | None
    heads: Mapping[Hash, str]
    refused: Mapping[Hash, tuple[Diagnostic, ...]]


@dataclass(frozen=True, slots=True)
class Made:
    """An automatic merge: the version, and its graph beside that of its first parent."""

    version: Version
    generation: int
    graph: Graph
    before: Graph


@dataclass(frozen=True, slots=True)
class Decided:
    """What to do: where our head stands, the maximal heads now, versions to store, conflicts that stand open."""

    own: Hash
    heads: Mapping[Hash, str]
    made: tuple[Made, ...] = ()
    findings: tuple[GossipFinding, ...] = ()


def decide(lines: Lines, merging: bool, keys: Keyring, clashes: Clashes) -> Asking[Decided]:
    """Decide about a session. `merging`: this replica is to merge what merges (see `gossip_rules`).

    A head that descends from ours is taken at once. Heads that do not merge are a conflict on sight, whoever
    merges. The outcome follows from the arguments alone, so replicas that know the same decide alike.
    """
    own = lines.own or FIRST_VERSION.id
    heads, made = lines.heads, []
    own = yield from _taken(own, heads, lines.refused)
    sound = [head for head in heads if head not in lines.refused]
    if own not in heads and own != FIRST_VERSION.id:
        sound.append(own)  # only a refused head descends from it, so it still takes part
    if merging and len(sound) > 1:
        for parts in (yield from fold(sound, keys)):
            if len(parts.parents) > 1:
                merged = yield from _finish(parts)
                made.append(merged)
                holder = min(heads[parent] for parent in parts.parents if parent in heads)
                heads = {head: by for head, by in heads.items() if head not in parts.parents}
                heads[merged.version.id] = min(holder, heads.get(merged.version.id, holder))
                if own in parts.parents:
                    own = merged.version.id
    heads = {head: heads[head] for head in sorted(heads)}
    found = yield from _findings(lines, own, heads, made, keys, clashes)
    return Decided(own, heads, tuple(made), found)


def _taken(own: Hash, heads: Mapping[Hash, str], refused: Iterable[Hash]) -> Asking[Hash]:
    """Our head after taking one that descends from it: the first in order of id that is sound."""
    if own in heads:
        return own
    for head in sorted(heads):
        if head not in refused and (yield from through(is_ancestor(own, head), Ancestries)):
            return head
    return own


# ---- merging


@dataclass(frozen=True, slots=True)
class Parts:
    """Heads that merge cleanly, merged in this order; `closed` and the graph are the outcome's."""

    parents: tuple[Hash, ...]
    graph: Graph
    closed: bool


def fold(heads: Sequence[Hash], keys: Keyring, depth: int = 0) -> Asking[list[Parts]]:
    """Merge heads in sorted order of id, leaving out those that do not merge cleanly; these are folded again
    among themselves. So every head is in exactly one group, and what one conflict keeps apart is still merged.
    """
    groups: list[Parts] = []
    left = sorted(heads)
    known = yield from versions(left)
    content = yield from graphs(left)
    while left:
        first, *others = left
        parts, left = Parts((first,), content[first], known[first].closed), []
        for head in others:
            taken = yield from _take(parts, known[head], content[head], keys, depth)
            if taken is None:
                left.append(head)
            else:
                parts = taken
        groups.append(parts)
    return groups


def _take(parts: Parts, head: Version, theirs: Graph, keys: Keyring, depth: int) -> Asking[Parts | None]:
    bases = yield from _bases(parts.parents, head.id)
    grounds = yield from versions(bases)
    outcome = yield from _merged(bases, parts.graph, theirs, keys, depth)
    if isinstance(outcome, Conflicted):
        return None
    closed = merge_closed([grounds[base].closed for base in bases], parts.closed, head.closed)
    return Parts((*parts.parents, head.id), outcome.graph, closed)


def _merged(
    bases: tuple[Hash, ...], ours: Graph, theirs: Graph, keys: Keyring, depth: int = 0
) -> Asking[Merged | Conflicted]:
    """Merge two graphs of heads. Where several bases disagree and the sides clash for it, the merge of the bases
    (if they merge) is tried as the one base: replicas that merged the same edits at once, each in its own order,
    left such histories, and nobody's edits clash in them.
    """
    content = yield from graphs(bases)
    outcome = merge([content[base] for base in bases], ours, theirs, keys)
    if isinstance(outcome, Conflicted) and len(bases) > 1 and depth < CRISS_CROSS_MAX:
        groups = yield from fold(bases, keys, depth + 1)
        if len(groups) == 1:
            again = merge([groups[0].graph], ours, theirs, keys)
            return again if isinstance(again, Merged) else outcome
    return outcome


def _bases(parents: tuple[Hash, ...], head: Hash) -> Asking[tuple[Hash, ...]]:
    """The merge bases of a head and the (perhaps unfinished) merge of `parents`."""
    if len(parents) == 1:
        return (yield from through(merge_bases(parents[0], head), Ancestries))
    above = yield from ancestries(parents)
    virtual = Ancestry(tuple(sorted(parents)), generation_after(above.values()))
    steps = merge_bases(_VIRTUAL, head)
    try:
        wanted = next(steps)
        while True:
            real = tuple(id for id in wanted if id != _VIRTUAL)
            found = dict((yield Ancestries(real)) if real else {})
            found[_VIRTUAL] = virtual
            wanted = steps.send(found)
    except StopIteration as stop:
        bases: tuple[Hash, ...] = stop.value
        return bases


def _finish(parts: Parts) -> Asking[Made]:
    parents = yield from versions(parts.parents)
    above = yield from ancestries(parts.parents)
    version = merge_version([parents[id] for id in parts.parents], parts.graph.root, parts.closed)
    before = yield from graphs(parts.parents[:1])
    return Made(version, generation_after(above.values()), parts.graph, before[parts.parents[0]])


# ---- conflicts


def _findings(
    lines: Lines, own: Hash, heads: Mapping[Hash, str], made: Sequence[Made], keys: Keyring, clashes: Clashes
) -> Asking[tuple[GossipFinding, ...]]:
    """The conflicts of our head with each other one; heads that claim the same are one finding."""
    fresh = {merged.version.id: merged for merged in made}
    found: dict[Hash, GossipFinding] = {}
    for head, holder in heads.items():
        if head == own:
            continue
        if (errors := lines.refused.get(head)) is not None:
            finding = yield from _refused(lines.session_id, own, head, holder, errors, fresh)
        else:
            conflicts, bases = yield from _clash(own, head, fresh, keys, clashes)
            if not conflicts:
                continue
            finding = _diverged(lines.session_id, own, head, holder, conflicts, bases)
        claim = finding.claim(lines.session_id)
        if (first := found.get(claim)) is not None:
            sources = first.about["source_heads"]
            assert isinstance(sources, list)
            finding = replace(first, about={**first.about, "source_heads": [*sources, head.hex()]})
        found[claim] = finding
    return tuple(found.values())


def _clash(
    own: Hash, head: Hash, fresh: Mapping[Hash, Made], keys: Keyring, clashes: Clashes
) -> Asking[tuple[tuple[MergeConflict, ...], tuple[Hash, ...]]]:
    if (known := clashes.get((own, head))) is not None:
        return known
    bases = yield from _bases_of_pair(own, head, fresh)
    ours, theirs = (yield from _graph(own, fresh)), (yield from _graph(head, fresh))
    outcome = yield from _merged(bases, ours, theirs, keys)
    conflicts = outcome.conflicts if isinstance(outcome, Conflicted) else ()
    clashes[(own, head)] = (conflicts, bases)
    return conflicts, bases


def _bases_of_pair(a: Hash, b: Hash, fresh: Mapping[Hash, Made]) -> Asking[tuple[Hash, ...]]:
    steps = merge_bases(a, b)
    try:
        wanted = next(steps)
        while True:
            real = tuple(id for id in wanted if id not in fresh)
            found = dict((yield Ancestries(real)) if real else {})
            for id in wanted:
                if (merged := fresh.get(id)) is not None:
                    found[id] = Ancestry(merged.version.parents, merged.generation)
            wanted = steps.send(found)
    except StopIteration as stop:
        bases: tuple[Hash, ...] = stop.value
        return bases


def _graph(id: Hash, fresh: Mapping[Hash, Made]) -> Asking[Graph]:
    if (merged := fresh.get(id)) is not None:
        return merged.graph
    return (yield from graphs((id,)))[id]


def _diverged(
    session_id: str,
    own: Hash,
    head: Hash,
    holder: str,
    conflicts: Sequence[MergeConflict],
    bases: tuple[Hash, ...],
) -> GossipFinding:
    ids = tuple(conflict.object_id for conflict in conflicts)
    essence: list[Json] = [[conflict.object_id, _stood(conflict)] for conflict in conflicts]
    kinds: list[Json] = [
        {"object_id": c.object_id, "kind": c.kind, "fields": [*c.fields]} for c in conflicts[:200]
    ]
    about = {"kind": "diverged", **_about(session_id, own, head, holder, ids, bases), "clashes": kinds}
    return GossipFinding("gossip", f"line:{holder}", essence, {}, ids, about)


def _stood(conflict: MergeConflict) -> Json:
    """What the object was in the merge base, as every replica sees it alike."""
    named: list[Json] = ["absent" if base is None else base.hash.hex() for base in conflict.bases]
    return named[0] if len(named) == 1 else named


def _refused(
    session_id: str,
    own: Hash,
    head: Hash,
    holder: str,
    errors: Sequence[Diagnostic],
    fresh: Mapping[Hash, Made],
) -> Asking[GossipFinding]:
    bases = yield from _bases_of_pair(own, head, fresh)
    content = yield from graphs(bases)
    base = content[bases[0]] if bases else EMPTY_GRAPH
    ids = tuple(dict.fromkeys(error.location for error in errors))
    essence: list[Json] = ["refused"]
    for id in sorted(ids):
        obj = base.get(id)
        essence.append([id, "absent" if obj is None else obj.hash.hex()])
    shown: list[Json] = [error.as_json() for error in errors[:100]]
    about = {"kind": "refused", **_about(session_id, own, head, holder, ids, bases), "diagnostics": shown}
    return GossipFinding("gossip", f"line:{holder}", essence, {}, ids, about)


def _about(
    session_id: str, own: Hash, head: Hash, holder: str, ids: tuple[str, ...], bases: tuple[Hash, ...]
) -> dict[str, Json]:
    hexes = [base.hex() for base in bases] or [FIRST_VERSION.id.hex()]
    about: dict[str, Json] = {
        "source_replica_id": holder,
        "source_session_id": line_id(session_id, holder),
        "base_version_id": hexes[0],
        "conflicts": [*ids],
        "target_head": own.hex(),
        "source_head": head.hex(),
        "source_heads": [head.hex()],
    }
    if len(hexes) > 1:
        about["base_version_ids"] = [*hexes]
    return about


def known_lines(
    session_id: str,
    own: Hash | None,
    mine: Mapping[Hash, str],
    theirs: Mapping[Hash, str],
    refused: Mapping[Hash, tuple[Diagnostic, ...]],
) -> Asking[Lines]:
    """The session after hearing of `theirs`: the maximal heads of both sides."""
    heads = yield from through(join_heads(mine, theirs), Ancestries)
    return Lines(session_id, own, heads, {head: refused[head] for head in heads if head in refused})
