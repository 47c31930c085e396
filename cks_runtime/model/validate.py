"""Whether a graph may be committed: every ERROR a change can cause, and the WARNINGs a caller asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from cks_runtime.model.contradictions import check_rule, contradictions
from cks_runtime.model.diagnostics import (
    DANGLING_REF,
    FORMAT,
    Diagnostic,
    broken,
    in_order,
    quoted,
    quoted_ids,
)
from cks_runtime.model.errors import DamagedBlob
from cks_runtime.model.graph import Graph
from cks_runtime.model.inference import check_step, confidence_conflicts, is_step, stale_premises
from cks_runtime.model.knowledge import KObject, format_faults
from cks_runtime.model.records import Keyring, check_introduced, check_record, concerned
from cks_runtime.model.references import Role
from cks_runtime.model.supersession import (
    RECORD_TYPE,
    STEP_TYPE,
    check_successor,
    cycles,
    standing,
)
from cks_runtime.model.validity import check_valid_until, provenance, temporal

EXTENSIONS: Final = ("inference", "temporal", "provenance", "contradiction")
ROLES: Final[tuple[Role, ...]] = ("participant", "premise", "conclusion", "superseded_by", "subject")


def check_all(graph: Graph, keys: Keyring) -> list[Diagnostic]:
    """Every ERROR in the graph; an object that could not be read is one, and what leads to it is left out."""
    found = [
        broken(FORMAT, id, f"object {quoted(id)} cannot be read: write it anew, or remove it")
        for id in graph.damaged
    ]
    for id in graph.ids():
        obj = graph.readable(id)
        with suppress(DamagedBlob):
            found += () if obj is None else _check_object(obj, graph, keys)
    for kind in (STEP_TYPE, RECORD_TYPE):
        with suppress(DamagedBlob):
            found += cycles(graph, (graph[id] for id in graph.of_type(kind)))
    return in_order(found)


def check_change(
    parents: Sequence[Graph], after: Graph, touched: Iterable[str], keys: Keyring
) -> list[Diagnostic]:
    """Every ERROR of `after` that a change of the `touched` ids can have caused.

    `touched` are the ids that differ from the first parent (or from any); without parents all of `after` is
    new. Finds every ERROR of `check_all` that the first parent does not have, and besides refuses a
    VerificationRecord that no parent has unless it was made for its subject as it now is. Looks only at the
    touched objects, those whose references break, the supersession chains through them and the records
    beside them.
    """
    ids = set(touched)
    suspects = ids.union(*(_neighbours(id, parents, after) for id in ids))
    present = [obj for id in suspects if (obj := after.get(id)) is not None]
    found = [d for obj in present for d in _check_object(obj, after, keys)]
    found += cycles(after, (obj for obj in present if obj.id in ids))
    records = (obj for obj in present if obj.id in ids and obj.type == RECORD_TYPE)
    found += (d for record in records if (d := check_introduced(record, parents, after)) is not None)
    return in_order(found)


def warnings(
    graph: Graph, extensions: Collection[str], now_ms: int, ttl_ms: int, scope: Iterable[str] | None = None
) -> list[Diagnostic]:
    """The WARNINGs of the named `EXTENSIONS`, in the whole graph or where objects of `scope` take part.

    A scoped object takes part as itself, as a step's conclusion or premise, or as a record's subject.
    """
    ids = graph.ids() if scope is None else set(scope)
    found: list[Diagnostic] = []
    if "inference" in extensions:
        found += _inference(graph, None if scope is None else set(ids))
    objects = [obj for id in ids if (obj := graph.readable(id)) is not None]
    if "temporal" in extensions:
        found += (d for obj in objects if (d := temporal(obj, now_ms)) is not None)
    if "provenance" in extensions:
        records = {id for obj in objects for id in (obj.id, *graph.referrers("subject", obj.id))}
        found += (d for id in records if (d := provenance(graph[id], now_ms, ttl_ms)) is not None)
    if "contradiction" in extensions:
        found += contradictions(graph, None if scope is None else ids)
    return in_order(found)


def _inference(graph: Graph, scope: set[str] | None) -> list[Diagnostic]:
    if scope is None:
        return [*confidence_conflicts(graph), *stale_premises(graph)]
    steps = [obj for id in scope if (obj := graph.get(id)) is not None and is_step(obj)]
    reached = {c for step in steps if isinstance(c := step.structure.get("conclusion"), str)}
    citing = {id for premise in scope for id in graph.referrers("premise", premise)}
    return [*confidence_conflicts(graph, scope | reached), *stale_premises(graph, scope | citing)]


def _neighbours(id: str, parents: Sequence[Graph], after: Graph) -> Iterator[str]:
    """Ids of other objects whose ERRORs may depend on what object `id` was and is."""
    now = after.get(id)
    earlier = [parent.readable(id) for parent in parents]
    if now is None or not earlier or None in earlier:
        # What refers to a removed object is broken; what refers to a new one is new, or was broken before.
        for role in ROLES:
            yield from after.referrers(role, id)
    elif any(standing(version) != standing(now) for version in earlier):
        yield from after.referrers("superseded_by", id)
    yield from concerned(id, [*earlier, now], after)


def _check_object(obj: KObject, graph: Graph, keys: Keyring) -> Iterator[Diagnostic]:
    """The ERRORs that belong to one object: all but cycles."""
    for fault in format_faults(obj):
        yield broken(FORMAT, obj.id, f"object {quoted(obj.id)}: {fault}")
    yield from _check_participants(obj, graph)
    yield from check_rule(obj)
    yield from check_successor(obj, graph)
    if (malformed := check_valid_until(obj)) is not None:
        yield malformed
    if obj.type == STEP_TYPE:
        yield from check_step(obj, graph)
    elif obj.type == RECORD_TYPE:
        yield from check_record(obj, graph, keys)


def _check_participants(obj: KObject, graph: Graph) -> Iterator[Diagnostic]:
    ends = obj.structure.get("participants")
    if not isinstance(ends, list):
        return
    missing = list(dict.fromkeys(end for end in ends if isinstance(end, str) and end and end not in graph))
    if missing:
        message = (
            f"relation {quoted(obj.id)} has participants that do not exist: {quoted_ids(missing)}; "
            "add them, or remove or rewrite the relation"
        )
        yield broken(DANGLING_REF, obj.id, message, *missing)
