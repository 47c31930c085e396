"""What is known about one object: relations, the reasoning that reaches it, its proofs and its dates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cks_runtime.model.canon import Json
from cks_runtime.model.graph import Graph
from cks_runtime.model.inference import current_step, is_active, is_step, premise_ids
from cks_runtime.model.knowledge import KObject
from cks_runtime.model.supersession import RECORD_TYPE, is_superseded
from cks_runtime.model.validity import provenance, temporal

CHAIN_MAX = 100
TEXT_MAX = 1000


@dataclass(frozen=True, slots=True)
class Chain:
    """The steps that carry a belief, nearest first and each once, and the facts they come down to."""

    steps: tuple[dict[str, Json], ...]
    base_facts: tuple[str, ...]
    truncated: bool


def relations_of(graph: Graph, object_id: str) -> list[dict[str, Json]]:
    """Every relation that mentions the object, sorted by id, in short form."""
    found: list[dict[str, Json]] = []
    for id in sorted(graph.referrers("participant", object_id)):
        relation = graph[id]
        participants = relation.structure.get("participants")
        shown = participants[:20] if isinstance(participants, list) else []
        found.append(
            {
                "relation_id": id,
                "name": relation.name,
                "relation_type": relation.structure.get("relation_type"),
                "participants": shown,
            }
        )
    return found


def steps_of(graph: Graph, object_id: str) -> tuple[list[dict[str, Json]], list[dict[str, Json]]]:
    """(active, superseded) steps that conclude the object, sorted by id; of a step, those for its conclusion."""
    obj = graph[object_id]
    about = object_id
    if is_step(obj) and isinstance(obj.structure.get("conclusion"), str):
        about = str(obj.structure["conclusion"])
    steps = [graph[id] for id in sorted(graph.referrers("conclusion", about))]
    steps = [step for step in steps if is_step(step)]
    active = [_step(graph, step) for step in steps if is_active(step)]
    superseded = [_step(graph, step) for step in steps if not is_active(step)]
    return active, superseded


def premise_chain(graph: Graph, object_id: str) -> Chain:
    """From the object down: the active steps that conclude it, those that conclude their premises, and so on.

    A premise may itself be a step. What no active step concludes is a base fact.
    """
    seen_steps: dict[str, dict[str, Json]] = {}
    seen = {object_id}
    base: dict[str, None] = {}
    level = [object_id]
    depth = 0
    while level:
        depth += 1
        below: dict[str, None] = {}
        for id in level:
            steps = _carrying(graph, id)
            if not steps and id != object_id:
                base[id] = None
            for step in steps:
                if step.id in seen_steps:
                    continue
                if len(seen_steps) >= CHAIN_MAX:
                    return Chain(tuple(seen_steps.values()), tuple(base), True)
                premises = premise_ids(step)
                seen_steps[step.id] = {
                    "step_id": step.id,
                    "depth": depth,
                    "conclusion": step.structure.get("conclusion"),
                    "premises": list(premises[:50]),
                    "operator": step.structure.get("operator"),
                    "confidence": step.structure.get("confidence"),
                }
                below.update((premise, None) for premise in premises if premise not in seen)
        seen.update(below)
        level = list(below)
    return Chain(tuple(seen_steps.values()), tuple(base), False)


def _carrying(graph: Graph, id: str) -> list[KObject]:
    obj = graph.get(id)
    if obj is not None and is_step(obj):
        return [obj]
    found = (graph[step] for step in sorted(graph.referrers("conclusion", id)))
    return [step for step in found if is_active(step)]


def verification_of(graph: Graph, obj: KObject, now_ms: int, ttl_ms: int) -> list[dict[str, Json]]:
    """The object's verification records, sorted by id: their source, age, and whether the object changed since."""
    found: list[dict[str, Json]] = []
    for id in sorted(graph.referrers("subject", obj.id)):
        record = graph[id]
        if record.type != RECORD_TYPE:
            continue
        found.append(
            {
                "record_id": id,
                "url": record.structure.get("url"),
                "http_status": record.structure.get("http_status"),
                "checked_at": record.structure.get("checked_at"),
                "checked_via": record.structure.get("checked_via"),
                "superseded": is_superseded(record),
                "expired": provenance(record, now_ms, ttl_ms) is not None,
                "subject_changed": record.structure.get("subject_hash") != obj.hash.hex(),
            }
        )
    return found


def validity_of(obj: KObject, now_ms: int) -> dict[str, Json] | None:
    """The object's date; None when it has none."""
    if "valid_until" not in obj.structure and "archived" not in obj.structure:
        return None
    return {
        "valid_until": obj.structure.get("valid_until"),
        "expired": temporal(obj, now_ms) is not None,
        "archived": obj.structure.get("archived") is True,
        "archived_at": obj.structure.get("archived_at"),
    }


def _step(graph: Graph, step: KObject) -> dict[str, Json]:
    shown: dict[str, Json] = {"step_id": step.id, "name": step.name}
    for key in ("operator", "confidence", "conclusion"):
        shown[key] = step.structure.get(key)
    shown["premises"] = list(premise_ids(step)[:50])
    shown["justification"] = _cut(step.structure.get("justification"))
    alternatives = step.structure.get("alternatives_considered")
    shown["alternatives_considered"] = _cut_all(alternatives) if isinstance(alternatives, list) else []
    if not is_active(step):
        shown["superseded_by"] = step.structure.get("superseded_by")
        shown["superseded_reason"] = _cut(step.structure.get("superseded_reason"))
        shown["current_step_id"] = current_step(graph, step.id)
    return shown


def _cut(value: Json) -> Json:
    return value[:TEXT_MAX] + "…" if isinstance(value, str) and len(value) > TEXT_MAX else value


def _cut_all(values: Sequence[Json]) -> list[Json]:
    return [_cut(value) for value in values[:20]]
