"""Operations for tests of the runtime: things, relations, reasoning steps, signed proofs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cks_runtime.flow.branches import MergeDone, MergeRefused
from cks_runtime.flow.commits import Moved
from cks_runtime.model.knowledge import KObject, make_object
from cks_runtime.model.records import record_operations
from cks_runtime.runtime import Runtime

Operation = dict[str, Any]


def identity(id: str, type: str = "Thing") -> Operation:
    return {"id": id, "type": type, "name": id.upper()}


def thing(id: str, **structure: Any) -> Operation:
    return {"op": "add_object", "identity": identity(id), "structure": structure}


def things(*ids: str) -> list[Operation]:
    return [thing(id) for id in ids]


def patch(id: str, **structure: Any) -> Operation:
    return {"op": "update_object", "object_id": id, "structure_patch": structure}


def remove(id: str) -> Operation:
    return {"op": "remove_object", "object_id": id}


def relation(id: str, *participants: str, kind: str = "knows") -> Operation:
    return {
        "op": "add_relation",
        "identity": identity(id, "Relation"),
        "participants": list(participants),
        "relation_type": kind,
    }


def step(id: str, conclusion: str, *premises: str, confidence: float = 0.5, **more: Any) -> Operation:
    return {
        "op": "record_inference",
        "identity": identity(id, "InferenceStep"),
        "premises": list(premises),
        "conclusion": conclusion,
        "operator": "deductive",
        "confidence": confidence,
        **more,
    }


def body(id: str, **structure: Any) -> KObject:
    return make_object(id, "Thing", id.upper(), structure)


async def evolve(rt: Runtime, session_id: str, *operations: Operation, **more: Any) -> Moved:
    """One commit; the session is made when it is not there."""
    return await rt.commits.evolve(session_id, list(operations), create=True, **more)


async def prove(
    rt: Runtime, session_id: str, subject_id: str, record_id: str, checked_at_ms: int, link_id: str = ""
) -> Moved:
    """Commit a signed record of a subject as it is now."""
    _, graph = await rt.sessions.head(session_id)
    operations = record_operations(
        record_id,
        link_id or f"{record_id}-link",
        graph[subject_id],
        "https://example.org/a",
        "https://example.org/b",
        200,
        checked_at_ms,
        "automated_http_check",
        rt.keys,
    )
    return await rt.commits.evolve(session_id, operations)


async def ids_of(rt: Runtime, session_id: str) -> Sequence[str]:
    """The ids of a session's head, sorted."""
    _, graph = await rt.sessions.head(session_id)
    return sorted(graph.ids())


async def branch(rt: Runtime, of: str = "s", title: str = "") -> str:
    """The id of a new branch."""
    return (await rt.branches.create(of, title=title)).session_id


async def merged(rt: Runtime, target: str, source: str, **more: Any) -> MergeDone:
    done = await rt.branches.merge(target, source, **more)
    assert isinstance(done, MergeDone), done
    return done


async def refused(rt: Runtime, target: str, source: str, **more: Any) -> MergeRefused:
    found = await rt.branches.merge(target, source, **more)
    assert isinstance(found, MergeRefused), found
    return found
