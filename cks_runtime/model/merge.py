"""Three-way merge of graphs: what merges by itself, what conflicts, and what resolutions make of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cks_runtime.model.canon import canonical
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.diff import (
    CUT_BYTES,
    Fields,
    Shown,
    compare_fields,
    described,
    fields,
    object_diff,
    shorten_object,
)
from cks_runtime.model.errors import InvalidParameter
from cks_runtime.model.graph import Graph, changes
from cks_runtime.model.knowledge import KObject
from cks_runtime.model.merge_fields import Clash, Kind, Side, differing, merge_fields, settle
from cks_runtime.model.records import LINK_TYPE, Keyring
from cks_runtime.model.references import references
from cks_runtime.model.supersession import RECORD_TYPE
from cks_runtime.model.validate import check_change

Resolution = Literal["branch_a", "branch_b"] | KObject | None
"""What becomes of an object in conflict: ours ("branch_a"), theirs ("branch_b"), this one, or none at all."""

_SIDES: Final[Mapping[str, Side]] = {"branch_a": "ours", "branch_b": "theirs"}
_FIELD_OF_ROLE: Final = {
    "participant": "participants",
    "premise": "premises",
    "conclusion": "conclusion",
    "superseded_by": "superseded_by",
    "subject": "subject_id",
}


@dataclass(frozen=True, slots=True)
class MergeConflict:
    """An object that does not merge by itself; `fields` are those that clash.

    `bases` are its distinct versions in the merge bases, sorted by hash, None (absent) first. `missing` are
    the removed objects that a `dangling` one refers to, `diagnostics` the ERRORs of one `invalid_together`.
    """

    object_id: str
    kind: Kind
    fields: tuple[str, ...]
    bases: tuple[KObject | None, ...]
    ours: KObject | None
    theirs: KObject | None
    missing: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def base(self) -> KObject | None:
        """The object as both sides knew it; None where it is absent or the merge bases disagree."""
        return self.bases[0] if len(self.bases) == 1 else None

    def as_json(self, cut: int = CUT_BYTES) -> Shown:
        """The entry a tool answers; ours is the target. A side that left the object alone has no diff."""
        entry: Shown = {
            "object_id": self.object_id,
            "kind": self.kind,
            "fields": [*self.fields],
            "base": shorten_object(self.base, cut) if self.base else None,
            "target_diff": self._diff(self.ours, cut),
            "source_diff": self._diff(self.theirs, cut),
        }
        if len(self.bases) > 1:
            entry["bases"] = [shorten_object(base, cut) if base else None for base in self.bases]
        if self.missing:
            entry["missing"] = [*self.missing]
        if self.diagnostics:
            entry["diagnostics"] = [found.as_json() for found in self.diagnostics]
        return entry

    def _diff(self, side: KObject | None, cut: int) -> Shown | None:
        if len(self.bases) == 1:
            return object_diff(self.bases[0], side, cut)
        if side is None:
            return described("removed", self.bases[-1], {})
        return described("modified", side, compare_fields(_agreed(self.bases), fields(side), cut))


def _agreed(bases: Iterable[KObject | None]) -> Fields:
    """The fields that all bases have alike."""
    first, *others = [fields(base) if base else {} for base in bases]
    return {
        field: value
        for field, value in first.items()
        if all(field in other and canonical(other[field]) == canonical(value) for other in others)
    }


@dataclass(frozen=True, slots=True)
class Merged:
    """A clean merge. `touched` are the ids that differ from ours.

    `dropped_relations` and `dropped_records` went because a resolution dropped them or what they are about;
    `restored` came back because a resolution kept an object that refers to them. All sorted.
    """

    graph: Graph
    touched: tuple[str, ...]
    dropped_relations: tuple[str, ...] = ()
    dropped_records: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conflicted:
    """What is left to be resolved, sorted by object id; never empty."""

    conflicts: tuple[MergeConflict, ...]


def merge(
    bases: Sequence[Graph],
    ours: Graph,
    theirs: Graph,
    keys: Keyring,
    resolutions: Mapping[str, Resolution] = {},
) -> Merged | Conflicted:
    """Merge two graphs that were one at `bases` (all merge bases, in any order; none counts as empty).

    Swapping the sides swaps them in the outcome and changes nothing else. The cost follows the differences.

    A resolution answers the conflict on its object, also one that shows once others are resolved. In an
    `edit/edit` the named side wins the fields that clash, in the other kinds it is the whole object, removal
    included; an object kept so from a `dangling` conflict brings back what it refers to. When an object whose
    conflict was answered ends in another one, and nothing else is left to answer, the same answer stands for
    the whole object. Raises InvalidParameter for a resolution that answers nothing or is none.
    """
    for id, resolution in resolutions.items():
        _check_resolution(id, resolution)
    work = _Work(bases, ours, theirs)
    answered: set[tuple[str, Kind]] = set()
    while True:
        conflicts = work.conflicts(keys, {id for id, _ in answered})
        answerable = _answerable(conflicts, resolutions, answered)
        if not answerable:
            break
        answered |= {(conflict.object_id, conflict.kind) for conflict in answerable}
        work.answer([(conflict, resolutions[conflict.object_id]) for conflict in answerable])
    for id in sorted(resolutions.keys() - {id for id, _ in answered}):
        raise InvalidParameter(
            f"the resolution for {id!r} answers no conflict",
            "Give resolutions only for objects that are in conflict; merge without them to see which are.",
            argument="resolutions",
            object_id=id,
        )
    if conflicts:
        return Conflicted(tuple(conflicts))
    return work.merged()


def _check_resolution(id: str, resolution: object) -> None:
    if isinstance(resolution, KObject) and resolution.id != id:
        raise InvalidParameter(
            f"the resolution for {id!r} is the object {resolution.id!r}",
            "Give the object under its own id.",
            argument="resolutions",
            object_id=id,
        )
    named = isinstance(resolution, str) and resolution in _SIDES
    if not named and resolution is not None and not isinstance(resolution, KObject):
        raise InvalidParameter(
            f"the resolution for {id!r} is {resolution!r}",
            "Name 'branch_a' or 'branch_b', give a full object, or null to drop it.",
            argument="resolutions",
            object_id=id,
        )


def _answerable(
    conflicts: Sequence[MergeConflict],
    resolutions: Mapping[str, Resolution],
    answered: set[tuple[str, Kind]],
) -> list[MergeConflict]:
    """Conflicts that have a resolution; an object's second conflict only when nothing else is left open."""
    ids = {id for id, _ in answered}
    first = [c for c in conflicts if c.object_id in resolutions and c.object_id not in ids]
    if first or any(conflict.object_id not in resolutions for conflict in conflicts):
        return first
    return [conflict for conflict in conflicts if (conflict.object_id, conflict.kind) not in answered]


_Kept = tuple[KObject, Graph]
"""An object that a resolution kept, and the graph of its side."""


class _Work:
    """A merge as far as it is decided.

    `chosen` overlays ours (and theirs, which is equal where nothing is chosen); `clashes` are undecided yet.
    `gone` is what `null` resolutions drop, with the relations and records that go along; it overrules `chosen`.
    """

    def __init__(self, bases: Sequence[Graph], ours: Graph, theirs: Graph) -> None:
        self.bases, self.ours, self.theirs = bases, ours, theirs
        self.chosen: dict[str, KObject | None] = {}
        self.clashes: dict[str, Clash] = {}
        self.given: set[str] = set()
        self.nulled: set[str] = set()
        self.gone: set[str] = set()
        self.restored: set[str] = set()
        self.result: Graph | None = None
        for id, left, right in changes(ours, theirs):
            self.put(id, settle(self.bases_of(id), left, right))
        self.candidates = self.chosen.keys() | self.clashes.keys()

    def bases_of(self, id: str) -> tuple[KObject | None, ...]:
        """The distinct versions in the merge bases, sorted by hash, absent first."""
        found = {obj.hash if obj else b"": obj for obj in (base.get(id) for base in self.bases)}
        return tuple(found[hash] for hash in sorted(found)) or (None,)

    def put(self, id: str, outcome: KObject | Clash | None) -> None:
        if isinstance(outcome, Clash):
            self.clashes[id] = outcome
        else:
            self.clashes.pop(id, None)
            self.chosen[id] = outcome

    def get(self, id: str) -> KObject | None:
        """The object as it is decided."""
        return None if id in self.gone else self.kept(id)

    def kept(self, id: str) -> KObject | None:
        """The object as it would be if nothing were dropped."""
        return self.chosen[id] if id in self.chosen else self.ours.get(id)

    def exists(self, id: str) -> bool:
        """Whether the object is there, or may be once its clash is decided."""
        return id in self.clashes or self.get(id) is not None

    # ---- conflicts

    def conflicts(self, keys: Keyring, answered: set[str]) -> list[MergeConflict]:
        """All that stands in the way now, sorted by id."""
        found = [self.conflict(id, clash) for id, clash in self.clashes.items()]
        found += self.dangling()
        if not found:
            found = self.invalid(keys, answered)
        return sorted(found, key=lambda conflict: conflict.object_id)

    def conflict(self, id: str, clash: Clash, missing: tuple[str, ...] = ()) -> MergeConflict:
        bases, left, right = self.bases_of(id), self.ours.get(id), self.theirs.get(id)
        return MergeConflict(id, clash.kind, clash.fields, bases, left, right, missing, clash.diagnostics)

    def dangling(self) -> Iterator[MergeConflict]:
        """Decided objects that refer to what one side removed.

        Each side is valid by itself, so only an object that one of them edited or made can be such a one.
        """
        for id in self.chosen:
            obj = self.get(id)
            lost = [(role, target) for role, target in (references(obj) if obj else ()) if self.lost(target)]
            if lost:
                named = tuple(sorted({_FIELD_OF_ROLE[role] for role, _ in lost}))
                yield self.conflict(id, Clash("dangling", named), tuple(sorted({t for _, t in lost})))

    def lost(self, id: str) -> bool:
        """Whether one side removed the object, and no resolution dropped it."""
        return id not in self.gone and not self.exists(id) and (id in self.ours) != (id in self.theirs)

    def invalid(self, keys: Keyring, answered: set[str]) -> list[MergeConflict]:
        """The objects that ERRORs of the merged graph name and either side changed.

        Once all of these are answered, they are named again, and with them where the ERROR is.
        """
        named: dict[str, list[Diagnostic]] = {}
        touched = self.chosen.keys() | self.gone
        for error in check_change([self.ours, self.theirs], self.graph(), touched, keys):
            others = error.extra.get("object_ids")
            ids = {id for id in (others if isinstance(others, list) else ()) if isinstance(id, str)}
            ids &= self.candidates
            for id in (ids - answered) or (ids | {error.location}):
                named.setdefault(id, []).append(error)
        return [
            self.conflict(
                id,
                Clash("invalid_together", differing(self.ours.get(id), self.theirs.get(id)), tuple(errors)),
            )
            for id, errors in named.items()
        ]

    # ---- resolutions

    def answer(self, answers: Sequence[tuple[MergeConflict, Resolution]]) -> None:
        """Decide these conflicts; the order of `answers` does not matter."""
        kept: list[_Kept] = []
        for conflict, resolution in answers:
            id = conflict.object_id
            self.restored.discard(id)
            if resolution is None:
                self.put(id, None)
                self.nulled.add(id)
            elif isinstance(resolution, KObject):
                self.put(id, resolution)
                self.given.add(id)
            else:
                kept += self.take_side(conflict, _SIDES[resolution])
        self.restore(kept)
        self.gone = self.dropped()
        self.result = None

    def take_side(self, conflict: MergeConflict, side: Side) -> list[_Kept]:
        """Decide for a side; the object, where what it refers to has to come with it."""
        id, (ours, theirs) = conflict.object_id, (conflict.ours, conflict.theirs)
        if conflict.kind == "edit/edit" and ours is not None and theirs is not None:
            self.put(id, merge_fields(conflict.bases, ours, theirs, favour=side))
            return []
        graph = self.ours if side == "ours" else self.theirs
        obj = graph.get(id)
        self.put(id, obj)
        needy = obj is not None and (conflict.kind == "dangling" or obj.type == RECORD_TYPE)
        return [(obj, graph)] if obj is not None and needy else []

    def restore(self, kept: list[_Kept]) -> None:
        """Bring back what kept objects refer to, as their side has it, and what that refers to in turn."""
        while kept:
            obj, graph = kept.pop()
            for id in _needed(obj, graph):
                found = graph.get(id)
                if found is not None and not self.exists(id) and id not in self.nulled:
                    self.put(id, found)
                    self.restored.add(id)
                    kept.append((found, graph))

    def dropped(self) -> set[str]:
        """What was dropped, with its relations and records and theirs, as `remove_object` takes them along."""
        gone = set(self.nulled)
        waiting = list(gone)
        while waiting:
            for id in self.about(waiting.pop()):
                if id not in gone and id not in self.clashes:
                    gone.add(id)
                    waiting.append(id)
        return gone

    def about(self, target: str) -> Iterator[str]:
        """Relations that mention `target` and records whose subject it is, unless one side's removal stands."""
        wanted = {("participant", target), ("subject", target)}
        found = set(self.given)
        for graph in (self.ours, self.theirs):
            found.update(graph.referrers("participant", target), graph.referrers("subject", target))
        for id in found:
            obj = self.kept(id)
            if obj is not None and not wanted.isdisjoint(references(obj)):
                yield id

    # ---- outcome

    def graph(self) -> Graph:
        if self.result is None:
            self.result = self.ours.with_changes({**self.chosen, **dict.fromkeys(self.gone)})
        return self.result

    def merged(self) -> Merged:
        touched = (id for id in self.chosen.keys() | self.gone if self.get(id) != self.ours.get(id))
        sides = {id: (self.ours.get(id), self.theirs.get(id)) for id in sorted(self.gone)}
        return Merged(
            self.graph(),
            tuple(sorted(touched)),
            tuple(id for id, objects in sides.items() if any(o and o.is_relation for o in objects)),
            tuple(id for id, objects in sides.items() if any(o and o.type == RECORD_TYPE for o in objects)),
            tuple(sorted(self.restored - self.gone)),
        )


def _needed(obj: KObject, graph: Graph) -> Iterator[str]:
    """What an object cannot stand without: all it refers to, and a record's link to its subject."""
    for _, target in references(obj):
        yield target
    if obj.type == RECORD_TYPE:
        for id in graph.referrers("participant", obj.id):
            link = graph[id].structure
            ends = [obj.structure.get("subject_id"), obj.id]
            if link.get("relation_type") == LINK_TYPE and link.get("participants") == ends:
                yield id
