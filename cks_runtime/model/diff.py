"""What differs between two objects or two graphs, field by field, in a form that can be shown."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cks_runtime.model.canon import Json, canonical
from cks_runtime.model.graph import Change, Graph, changes
from cks_runtime.model.knowledge import KObject

NAME_FIELD: Final = "identity.name"
TYPE_FIELD: Final = "identity.type"
CUT_BYTES: Final = 2048
IDS_SHOWN_MAX: Final = 200

Fields = dict[str, Json]
Shown = dict[str, Json]

_KEY_PREFIX: Final = "structure."


def field_name(key: str) -> str:
    """The field that a top-level key of a structure is: the key itself.

    Only a key that would be taken for the name or the type ("identity.name") gets "structure." before it.
    """
    bare = key
    while bare.startswith(_KEY_PREFIX):
        bare = bare[len(_KEY_PREFIX) :]
    return _KEY_PREFIX + key if bare in (NAME_FIELD, TYPE_FIELD) else key


def fields(obj: KObject) -> Fields:
    """An object's fields: each top-level key of its structure, its name and its type."""
    return {
        NAME_FIELD: obj.name,
        TYPE_FIELD: obj.type,
        **{field_name(key): value for key, value in obj.structure.items()},
    }


def field_changes(
    before: KObject | None, after: KObject | None, cut: int = CUT_BYTES, base: KObject | None = None
) -> Shown:
    """`{field: {"from": …, "to": …}}` for every field that differs; a side without the field has no key.

    With `base`, its value stands beside them as "base". A value longer than `cut` bytes of canonical JSON is
    replaced by the beginning of its text, with `"truncated": true` beside it.
    """
    if before is not None and after is not None and before.hash == after.hash:
        return {}
    old, new = (fields(obj) if obj is not None else {} for obj in (before, after))
    return compare_fields(old, new, cut, fields(base) if base is not None else {})


def compare_fields(
    before: Fields, after: Fields, cut: int = CUT_BYTES, base: Mapping[str, Json] = {}
) -> Shown:
    """`field_changes` of two sets of fields."""
    return {
        field: _change([("from", before), ("to", after), ("base", base)], field, cut)
        for field in sorted(before.keys() | after.keys())
        if not _same(before, after, field)
    }


def _same(before: Fields, after: Fields, field: str) -> bool:
    if field not in before or field not in after:
        return False
    # Canonical bytes, since to Python 1 == True.
    return canonical(before[field]) == canonical(after[field])


def _change(sides: Iterable[tuple[str, Mapping[str, Json]]], field: str, cut: int) -> Shown:
    entry: Shown = {}
    for label, values in sides:
        if field in values:
            entry[label], was_cut = shorten(values[field], cut)
            if was_cut:
                entry["truncated"] = True
    return entry


def shorten(value: Json, cut: int = CUT_BYTES) -> tuple[Json, bool]:
    """`value`, or the beginning of its text if its canonical JSON is over `cut` bytes; and which of them.

    The text of a string is itself, that of any other value its canonical JSON. What is shown is at most `cut`
    bytes as JSON, too.
    """
    data = canonical(value)
    if len(data) <= cut:
        return value, False
    text = value if isinstance(value, str) else data.decode()
    length = bisect_right(range(min(len(text), cut)), cut, key=lambda end: len(canonical(text[:end]))) - 1
    return text[: max(length, 0)], True


def shorten_object(obj: KObject, cut: int = CUT_BYTES) -> Shown:
    """`{"identity", "structure"}` with long values cut, and `"truncated": true` where any was."""
    shown = {key: shorten(value, cut) for key, value in obj.structure.items()}
    entry: Shown = {
        "identity": {"id": obj.id, "type": obj.type, "name": obj.name},
        "structure": {key: value for key, (value, _) in shown.items()},
    }
    return {**entry, "truncated": True} if any(was_cut for _, was_cut in shown.values()) else entry


def object_diff(base: KObject | None, side: KObject | None, cut: int = CUT_BYTES) -> Shown | None:
    """`{action, type, name, changes}` from `base` to `side`; None when they are equal.

    A removed object has no `changes`: what it was is the base.
    """
    if (base and base.hash) == (side and side.hash):
        return None
    if side is None:
        return described("removed", base, {})
    return described("modified" if base else "added", side, field_changes(base, side, cut))


def described(action: str, obj: KObject | None, changes: Shown) -> Shown:
    """An object's diff entry; type and name are those of `obj`."""
    return {
        "action": action,
        "type": obj.type if obj else "",
        "name": obj.name if obj else "",
        "changes": changes,
    }


@dataclass(frozen=True, slots=True)
class GraphDiff:
    """Objects that differ, as (id, before, after), each list sorted by id."""

    added: tuple[Change, ...]
    updated: tuple[Change, ...]
    removed: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.updated or self.removed)


def graph_diff(a: Graph, b: Graph) -> GraphDiff:
    """What leads from `a` to `b`; the cost follows the difference."""
    return sorted_changes(changes(a, b))


def sorted_changes(found: Iterable[Change]) -> GraphDiff:
    """The changes by what happened; `found` is sorted by id and has no equal pairs."""
    known = list(found)
    return GraphDiff(
        added=tuple(change for change in known if change[1] is None),
        updated=tuple(change for change in known if change[1] is not None and change[2] is not None),
        removed=tuple(change for change in known if change[2] is None),
    )


def changed_json(diff: GraphDiff) -> Shown:
    """`{"added": {"count", "ids"}, "updated": …, "removed": …}` with the first 200 ids of each."""
    return {
        label: {"count": len(found), "ids": [id for id, _, _ in found[:IDS_SHOWN_MAX]]}
        for label, found in (("added", diff.added), ("updated", diff.updated), ("removed", diff.removed))
    }
