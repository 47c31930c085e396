"""Chains of `superseded_by`: which step or record took the place of which."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from cks_runtime.model.canon import Json
from cks_runtime.model.diagnostics import (
    SUPERSESSION_CHAIN,
    VERIFICATION_RECORD,
    Diagnostic,
    broken,
    quoted,
    quoted_ids,
)
from cks_runtime.model.knowledge import KObject

STEP_TYPE: Final = "InferenceStep"
RECORD_TYPE: Final = "VerificationRecord"

_TOPIC: Final = {STEP_TYPE: "conclusion", RECORD_TYPE: "subject_id"}
_CODE: Final = {STEP_TYPE: SUPERSESSION_CHAIN, RECORD_TYPE: VERIFICATION_RECORD}


class Objects(Protocol):
    """Where objects are found by id: a graph, or a draft of one."""

    def get(self, id: str) -> KObject | None:
        """The object of this id, or None."""


def is_superseded(obj: KObject) -> bool:
    """Whether another object took the place of this step or record; a malformed successor counts."""
    return obj.type in _TOPIC and obj.structure.get("superseded_by") is not None


def successor(graph: Objects, obj: KObject) -> KObject | None:
    """The object that supersedes `obj`: of the same type and in the graph, else None."""
    next_id = obj.structure.get("superseded_by")
    if obj.type not in _TOPIC or not isinstance(next_id, str):
        return None
    found = graph.get(next_id)
    return found if found is not None and found.type == obj.type else None


def standing(obj: KObject | None) -> tuple[str, Json] | None:
    """What those that name `obj` as their successor depend on: its type, and its conclusion or subject."""
    if obj is None:
        return None
    return obj.type, obj.structure.get(_TOPIC[obj.type]) if obj.type in _TOPIC else None


def chain_end(graph: Objects, obj: KObject) -> KObject:
    """The last of the chain that begins with `obj`; on a cycle, the one whose successor was seen before."""
    seen = {obj.id}
    while (after := successor(graph, obj)) is not None and after.id not in seen:
        seen.add(after.id)
        obj = after
    return obj


def cycles(graph: Objects, starts: Iterator[KObject]) -> Iterator[Diagnostic]:
    """One ERROR for each cycle that a chain from one of `starts` leads into; each object is visited once."""
    settled: set[str] = set()
    for start in starts:
        place: dict[str, int] = {}
        at: KObject | None = start
        while at is not None and at.id not in settled and at.id not in place:
            place[at.id] = len(place)
            at = successor(graph, at)
        settled.update(place)
        if at is not None and at.id in place:
            yield _cycle(at.type, list(place)[place[at.id] :])


def _cycle(kind: str, ids: list[str]) -> Diagnostic:
    """A cycle reads the same wherever it was entered: it begins at its smallest id."""
    first = ids.index(min(ids))
    ids = ids[first:] + ids[:first]
    message = (
        f"{kind} {quoted(ids[0])} supersedes itself through 'superseded_by': {quoted_ids([*ids, ids[0]])}; "
        "clear 'superseded_by' on the one that is current"
    )
    return broken(_CODE[kind], ids[0], message, *ids)


def check_successor(obj: KObject, graph: Objects) -> Iterator[Diagnostic]:
    """ERRORs of the link from `obj`: malformed, missing, of another type, conclusion or subject."""
    next_id = obj.structure.get("superseded_by")
    if obj.type not in _TOPIC or next_id is None:
        return
    code, topic, kind = _CODE[obj.type], _TOPIC[obj.type], obj.type
    after = graph.get(next_id) if isinstance(next_id, str) else None
    if not isinstance(next_id, str) or not next_id:
        problem = f"must be an object id or null, is {quoted(next_id)}"
    elif after is None:
        problem = (
            f"names {quoted(next_id)}, which does not exist: name another, clear it, or remove this one first"
        )
    elif after.type != kind:
        problem = f"names {quoted(next_id)}, which is of type {quoted(after.type)} and no {kind}"
    elif standing(after) != standing(obj):
        other, own = quoted(after.structure.get(topic)), quoted(obj.structure.get(topic))
        problem = f"names {quoted(next_id)}, whose {topic!r} is {other} and not {own}"
    else:
        return
    others = [next_id] if isinstance(next_id, str) and next_id else []
    yield broken(code, obj.id, f"{kind} {quoted(obj.id)}: 'superseded_by' {problem}", *others)
