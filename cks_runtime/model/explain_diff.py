"""A readable account of what differs between two graphs, with what it means for relations and reasoning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cks_runtime.model.canon import Json, canonical
from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.diff import Shown, field_changes, graph_diff, shorten
from cks_runtime.model.graph import Change, Graph
from cks_runtime.model.inference import is_active, is_step
from cks_runtime.model.knowledge import KObject

LINES_MAX: Final = 10
"""Objects of one kind that the summary names; the lists have all."""


def explain(a: Graph, b: Graph, base: Graph | None = None) -> Shown:
    """What leads from `a` to `b`: `{summary, added, removed, modified, relinked_relations, inference_changes}`.

    `added`, `removed` and `modified` part all objects that differ; the other two lists say what some of these mean.
    All are complete and sorted by object id. With `base` (two lines compared), changed fields carry its value, too.
    """
    diff = graph_diff(a, b)
    account: Shown = {
        "added": [_named(after) for _, _, after in diff.added if after],
        "removed": [_named(before) for _, before, _ in diff.removed if before],
        "modified": [_modified(change, base) for change in diff.updated],
        "relinked_relations": [entry for change in diff.updated for entry in _relinked(change)],
        "inference_changes": [
            entry
            for change in sorted((*diff.added, *diff.updated, *diff.removed), key=lambda change: change[0])
            for entry in _inference_changes(change)
        ],
    }
    return {"summary": "\n".join(_summary(account)), **account}


def _named(obj: KObject) -> Shown:
    return {"object_id": obj.id, "type": obj.type, "name": obj.name}


def _modified(change: Change, base: Graph | None) -> Shown:
    id, before, after = change
    origin = base.get(id) if base is not None else None
    named = _named(after) if after is not None else {}
    return {**named, "changes": field_changes(before, after, base=origin)}


def _relinked(change: Change) -> Iterator[Shown]:
    """The entry of a relation that joins other objects than before, or joins them otherwise."""
    id, before, after = change
    if before is None or after is None or not (before.is_relation and after.is_relation):
        return
    keys = ("relation_type", "participants")
    if any(not _same(before, after, key) for key in keys):
        yield {"object_id": id, **{key: _from_to(before, after, key) for key in keys}}


def _inference_changes(change: Change) -> Iterator[Shown]:
    """What happened to a reasoning step: one entry for each thing that did."""
    id, before, after = change
    old = before if is_step(before) else None
    new = after if is_step(after) else None
    if old is not None and new is not None and not _same(old, new, "conclusion"):
        # A step for another conclusion is another step: the old conclusion has lost one.
        yield from _step_changes(id, old, None)
        yield from _step_changes(id, None, new)
    else:
        yield from _step_changes(id, old, new)


def _step_changes(id: str, old: KObject | None, new: KObject | None) -> Iterator[Shown]:
    step = new or old
    if step is None:
        return
    about: Shown = {"object_id": id, "conclusion": _short(step.structure.get("conclusion"))}
    if old is None or new is None:
        shown = {key: _short(step.structure.get(key)) for key in ("premises", "operator", "confidence")}
        yield {**about, "change": "removed" if new is None else "added", **shown, "active": is_active(step)}
        return
    if not _same(old, new, "premises"):
        yield {**about, "change": "premises", "premises": _from_to(old, new, "premises")}
    if not _same(old, new, "confidence"):
        yield {**about, "change": "confidence", "confidence": _from_to(old, new, "confidence")}
    if is_active(new) and not is_active(old):
        yield {**about, "change": "reactivated", "superseded_by": _from_to(old, new, "superseded_by")}
    elif not is_active(new) and not _same(old, new, "superseded_by"):
        entry = {**about, "change": "superseded", "superseded_by": _from_to(old, new, "superseded_by")}
        reason = new.structure.get("superseded_reason")
        yield {**entry, "superseded_reason": _short(reason)} if reason else entry


def _same(before: KObject, after: KObject, key: str) -> bool:
    a, b = before.structure.get(key), after.structure.get(key)
    return canonical(a) == canonical(b)


def _from_to(before: KObject, after: KObject, key: str) -> Shown:
    return {"from": _short(before.structure.get(key)), "to": _short(after.structure.get(key))}


def _short(value: Json) -> Json:
    return shorten(value)[0]


# ---- summary


def _summary(account: Shown) -> Iterator[str]:
    """One line of counts, then a line an object, the first few of each kind."""
    lists: dict[str, list[Shown]] = {
        label: [entry for entry in found if isinstance(entry, dict)]
        for label, found in account.items()
        if isinstance(found, list)
    }
    if not any(lists.values()):
        yield "Nothing differs."
        return
    yield ", ".join(_counted(label, len(found)) for label, found in lists.items() if found) + "."
    for label, found in lists.items():
        yield from (_LINES[label](entry) for entry in found[:LINES_MAX])
        if len(found) > LINES_MAX:
            yield f"… and {_counted(label, len(found) - LINES_MAX, 'more ')}."


_NOUNS: Final = {
    "added": ("object added", "objects added"),
    "removed": ("object removed", "objects removed"),
    "modified": ("object modified", "objects modified"),
    "relinked_relations": ("relation relinked", "relations relinked"),
    "inference_changes": ("change to the reasoning", "changes to the reasoning"),
}


def _counted(label: str, count: int, more: str = "") -> str:
    return f"{count} {more}{_NOUNS[label][count != 1]}"


def _object_line(verb: str, entry: Shown) -> str:
    return f"{verb} {quoted(entry['type'])} {quoted(entry['name'])} ({quoted(entry['object_id'])})."


def _modified_line(entry: Shown) -> str:
    changes = entry["changes"]
    names = list(changes) if isinstance(changes, dict) else []
    more = f" and {len(names) - LINES_MAX} more" if len(names) > LINES_MAX else ""
    shown = ", ".join(quoted(name)[1:-1] for name in names[:LINES_MAX])
    return f"{_object_line('Modified', entry)[:-1]}: {shown}{more}."


def _relinked_line(entry: Shown) -> str:
    ends = (
        f"{_end(entry['relation_type'], side)} {_end(entry['participants'], side)}" for side in ("from", "to")
    )
    return f"Relation {quoted(entry['object_id'])} joined {' and now joins '.join(ends)}."


def _inference_line(entry: Shown) -> str:
    start = f"Step {quoted(entry['object_id'])} for {quoted(entry['conclusion'])}"
    match entry["change"]:
        case "added":
            return f"{start} added with confidence {quoted(entry['confidence'])}."
        case "removed":
            return f"{start} removed; its confidence was {quoted(entry['confidence'])}."
        case "superseded":
            return f"{start} superseded by {_end(entry['superseded_by'], 'to')}."
        case "reactivated":
            return f"{start} active again; it was superseded by {_end(entry['superseded_by'], 'from')}."
        case change:
            label = str(change)
            return f"{start}: {label} {_end(entry[label], 'from')} → {_end(entry[label], 'to')}."


def _end(pair: Json, side: str) -> str:
    value = pair.get(side) if isinstance(pair, dict) else None
    if isinstance(value, list):
        return "[" + _ids(value) + "]"
    return quoted(value)


def _ids(values: Sequence[Json]) -> str:
    more = f", and {len(values) - LINES_MAX} more" if len(values) > LINES_MAX else ""
    return ", ".join(quoted(value) for value in values[:LINES_MAX]) + more


_LINES: Final = {
    "added": lambda entry: _object_line("Added", entry),
    "removed": lambda entry: _object_line("Removed", entry),
    "modified": _modified_line,
    "relinked_relations": _relinked_line,
    "inference_changes": _inference_line,
}
