"""Small builders for tests: things, relations, steps, signed records, operations."""

from __future__ import annotations

from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.knowledge import KObject, make_object
from cks_runtime.model.operations import Applied, apply_operations
from cks_runtime.model.records import Keyring, record_operations
from cks_runtime.model.validate import check_change

KEYS = Keyring.of(b"the key of these tests, 32 bytes")
CHECKED_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def thing(id: str, type: str = "Thing", **structure: object) -> KObject:
    return make_object(id, type, id.upper(), structure)


def relation(id: str, *participants: str, kind: str = "knows", **more: object) -> KObject:
    return thing(id, "Relation", participants=list(participants), relation_type=kind, **more)


def step(id: str, conclusion: str, *premises: str, confidence: object = 0.5, **more: object) -> KObject:
    parts = {
        "premises": list(premises),
        "conclusion": conclusion,
        "operator": "deductive",
        "confidence": confidence,
    }
    return thing(id, "InferenceStep", **{**parts, **more})


def graph(*objects: KObject) -> Graph:
    return EMPTY_GRAPH.with_changes({obj.id: obj for obj in objects})


def proof(
    subject: KObject, record: str = "rec", link: str = "link", keys: Keyring = KEYS, **said: object
) -> list[dict]:
    """The operations that add a signed record of `subject`."""
    told = {
        "url": "https://example.org/a",
        "final_url": "https://example.org/b",
        "http_status": 200,
        "checked_at_ms": CHECKED_MS,
        "checked_via": "automated_http_check",
    }
    return record_operations(record, link, subject, keyring=keys, **{**told, **said})


def op(name: str, **arguments: object) -> dict:
    return {"op": name, **arguments}


def identity(id: str, type: str = "Thing", name: str = "A name") -> dict:
    return {"id": id, "type": type, "name": name}


def evolve(before: Graph, *operations: object) -> tuple[Applied, list[Diagnostic]]:
    """What a commit does: apply, then look for ERRORs."""
    applied = apply_operations(before, list(operations))
    return applied, check_change([before], applied.graph, applied.touched, KEYS)


def accepted(before: Graph, *operations: object) -> Graph:
    applied, found = evolve(before, *operations)
    assert found == []
    return applied.graph


def codes(found: list[Diagnostic]) -> list[str]:
    return [d.code for d in found]
