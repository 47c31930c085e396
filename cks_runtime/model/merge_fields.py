"""Three-way merge of one object: which side each field is taken from, and where the sides clash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cks_runtime.model.canon import Json, canonical, digest
from cks_runtime.model.diagnostics import FORMAT, Diagnostic, broken, quoted
from cks_runtime.model.diff import NAME_FIELD, TYPE_FIELD, field_name, fields
from cks_runtime.model.knowledge import KObject, object_from_blob
from cks_runtime.model.supersession import RECORD_TYPE, STEP_TYPE

Kind = Literal["edit/edit", "remove/edit", "add/add", "dangling", "invalid_together"]
Side = Literal["ours", "theirs"]

OBJECT_BYTES_MAX: Final = 1_048_576
"""What every replica accepts of another, whatever its own settings: merges must come out alike everywhere."""

_RELATION: Final = ("participants", "relation_type")
_STEP: Final = ("premises", "conclusion", "operator", "confidence")

_Encoded = Mapping[str, bytes]
_Bases = tuple[KObject | None, ...]


@dataclass(frozen=True, slots=True)
class Clash:
    """Why an object does not merge by itself; `fields` are those that clash, sorted."""

    kind: Kind
    fields: tuple[str, ...]
    diagnostics: tuple[Diagnostic, ...] = ()


def settle(bases: _Bases, ours: KObject | None, theirs: KObject | None) -> KObject | Clash | None:
    """The merged object, None for a removal, or the clash. `bases` are distinct; () counts as absent."""
    if _hash(ours) == _hash(theirs):
        return ours
    if len(bases) < 2:
        base = bases[0] if bases else None
        if _hash(ours) == _hash(base):
            return theirs
        if _hash(theirs) == _hash(base):
            return ours
    if ours is None or theirs is None:
        return Clash("remove/edit", _edited(bases, ours or theirs))
    if not any(bases):
        return Clash("add/add", differing(ours, theirs))
    return merge_fields(bases, ours, theirs)


def merge_fields(
    bases: _Bases, ours: KObject, theirs: KObject, favour: Side | None = None
) -> KObject | Clash:
    """The object with each field from the side that changed it; fields that clash are the favoured side's.

    A field on which the bases disagree has no base value: equal sides merge, others clash; so has every field
    where a base lacks the object. Fields that only make sense together merge as one.
    """
    known = [_encode(base) if base is not None else None for base in bases]
    left, right = _encode(ours), _encode(theirs)
    taken: dict[str, KObject] = {}
    clashing: list[str] = []
    for unit in _units([obj for obj in (*bases, ours, theirs) if obj is not None]):
        side = _side(unit, known, left, right) or favour
        if side is None:
            clashing += [field for field in unit if left.get(field) != right.get(field)]
        else:
            taken.update(dict.fromkeys(unit, ours if side == "ours" else theirs))
    if clashing:
        return Clash("edit/edit", tuple(sorted(clashing)))
    return _joined(ours, theirs, taken)


def _side(
    unit: Sequence[str], bases: Sequence[_Encoded | None], ours: _Encoded, theirs: _Encoded
) -> Side | None:
    """The side that a unit is taken from; None where both changed it, each in its own way."""
    left, right = _values(unit, ours), _values(unit, theirs)
    before = {_values(unit, base) if base is not None else None for base in bases}
    if left == right or before == {right}:
        return "ours"
    return "theirs" if before == {left} else None


def _values(unit: Sequence[str], encoded: _Encoded) -> tuple[bytes | None, ...]:
    return tuple(encoded.get(field) for field in unit)


def _encode(obj: KObject | None) -> _Encoded:
    """An object's fields by their canonical bytes, since to Python 1 == True."""
    return {} if obj is None else {field: canonical(value) for field, value in fields(obj).items()}


def _units(versions: Sequence[KObject]) -> Iterator[tuple[str, ...]]:
    """The fields of all versions of an object, in the units that merge as one."""
    types = {obj.type for obj in versions}
    every = sorted({field for obj in versions for field in fields(obj)})
    if RECORD_TYPE in types:
        # A signature covers the whole record: a mixture of two verifies as neither.
        yield tuple(every)
        return
    groups = [_RELATION, _STEP] if STEP_TYPE in types else [_RELATION]
    yield from groups
    grouped = {field for group in groups for field in group}
    yield from ((field,) for field in every if field not in grouped)


def _joined(ours: KObject, theirs: KObject, taken: Mapping[str, KObject]) -> KObject | Clash:
    """The object whose every field is that of the version it is taken from."""
    structure: dict[str, Json] = {}
    for key in (*ours.structure, *theirs.structure):
        source = taken[field_name(key)].structure
        if key in source:
            structure[key] = source[key]
    type, name = taken[TYPE_FIELD].type, taken[NAME_FIELD].name
    data = canonical({"identity": {"id": ours.id, "type": type, "name": name}, "structure": structure})
    if len(data) <= OBJECT_BYTES_MAX:
        return object_from_blob(data, digest(data))
    problem = (
        f"the edits of both sides make object {quoted(ours.id)} {len(data)} bytes long; "
        f"at most {OBJECT_BYTES_MAX} are allowed"
    )
    return Clash("invalid_together", differing(ours, theirs), (broken(FORMAT, ours.id, problem),))


def differing(a: KObject | None, b: KObject | None) -> tuple[str, ...]:
    """The fields in which two versions differ, sorted."""
    left, right = _encode(a), _encode(b)
    return tuple(field for field in sorted(left.keys() | right.keys()) if left.get(field) != right.get(field))


def _edited(bases: _Bases, side: KObject | None) -> tuple[str, ...]:
    """The fields in which an object differs from a base that has it."""
    return tuple(sorted({field for base in bases if base is not None for field in differing(base, side)}))


def _hash(obj: KObject | None) -> bytes | None:
    return None if obj is None else obj.hash
