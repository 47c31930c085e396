"""Settling a fact past its date: extend it, archive it, or acknowledge that it is meant to stand as it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from cks_runtime.flow.commits import Plan, State
from cks_runtime.flow.refusals import closed_error, not_found
from cks_runtime.model.canon import Json
from cks_runtime.model.claims import Finding, dated_finding
from cks_runtime.model.diagnostics import Diagnostic, quoted
from cks_runtime.model.errors import InvalidParameter, ObjectNotFound
from cks_runtime.model.events import Event
from cks_runtime.model.graph import Graph
from cks_runtime.model.history import Version
from cks_runtime.model.knowledge import KObject
from cks_runtime.model.operations import apply_operations
from cks_runtime.model.times import format_ms
from cks_runtime.model.validity import temporal, valid_until_ms
from cks_runtime.runtime import Runtime
from cks_runtime.store import sessions
from cks_runtime.store.ports import Reader, Unit

Action = Literal["bump", "archive", "ignore"]
KIND = "temporal"
DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Dated:
    """What was done, or would be. `expired`: whether the date lay in the past; dates as RFC 3339 text."""

    expired: bool
    previous_valid_until: str | None
    new_valid_until: str | None
    version_id: str | None = None
    record_id: str | None = None


async def settle_temporal(
    rt: Runtime,
    session_id: str,
    object_id: str,
    action: Action,
    *,
    extend_by_days: int = 30,
    commit: bool = False,
    author: str = "",
    source: str = "caller",
    only_expired: bool = False,
) -> Dated:
    """Settle the date of one object; without `commit` nothing is changed or acknowledged.

    `only_expired`: leave alone a date that somebody else has moved meanwhile.

    The version, the closed conflict and its task are one transaction. Raises SessionNotFound, ObjectNotFound,
    InvalidParameter for an object without a date, or to ignore one that has not passed.
    """
    if action == "ignore":
        return await _ignore(rt, session_id, object_id, commit)
    done: list[Dated] = []

    async def plan(state: State, reader: Reader | None) -> Plan | None:
        dated, patch = _edit(state.graph, object_id, action, extend_by_days, rt.clock())
        done[:] = [dated]
        if only_expired and not dated.expired:
            return None
        if state.row.closed and not dated.expired:
            raise closed_error(session_id)  # nothing to settle, so this is an edit like any other
        operation = {
            "op": "update_object",
            "object_id": object_id,
            "mode": "merge",
            "structure_patch": patch,
        }
        applied = apply_operations(state.graph, [operation] if patch else [], rt.config.limits)
        if applied.graph.root == state.graph.root:
            return None
        rt.commits.require_valid([state.graph], applied.graph, applied.touched)
        check = _check(rt, session_id, applied.graph[object_id])
        text = _message(object_id, action, dated, source)
        return Plan(applied.graph, state.row.closed, author, text, also=check)

    if not commit:
        _, graph = await rt.sessions.head(session_id)
        return _edit(graph, object_id, action, extend_by_days, rt.clock())[0]
    moved = await rt.commits.advance(session_id, plan)
    (dated,) = done
    version_id = None if moved.no_op else moved.version.id.hex()
    return Dated(dated.expired, dated.previous_valid_until, dated.new_valid_until, version_id)


def _edit(
    graph: Graph, object_id: str, action: Action, extend_by_days: int, now_ms: int
) -> tuple[Dated, dict[str, Json]]:
    """What becomes of the date, and the patch that does it (empty: it is archived already)."""
    obj = _object(graph, object_id)
    if action == "archive" and obj.structure.get("archived") is True:
        return Dated(False, _written(obj), _written(obj)), {}
    old_ms = _date(obj)
    expired = temporal(obj, now_ms) is not None
    if action == "archive":
        patch: dict[str, Json] = {"archived": True, "archived_at": format_ms(now_ms), "valid_until": None}
        return Dated(expired, _written(obj), None), patch
    try:
        new = format_ms(max(now_ms, old_ms) + extend_by_days * DAY_MS)
    except ValueError:
        raise InvalidParameter(
            f"extend_by_days={extend_by_days} leads beyond the year 9999.",
            "Extend by less, or remove valid_until with evolve_knowledge.",
            argument="extend_by_days",
        ) from None
    return Dated(expired, _written(obj), new), {"valid_until": new}


def _object(graph: Graph, object_id: str) -> KObject:
    obj = graph.get(object_id)
    if obj is None:
        raise ObjectNotFound(
            f"There is no object {quoted(object_id)} in this session.",
            "object_id is the object that the diagnostic names as its location.",
            object_id=object_id,
        )
    return obj


def _date(obj: KObject) -> int:
    try:
        at_ms = valid_until_ms(obj)
    except ValueError as error:
        raise InvalidParameter(
            f"'valid_until' of {quoted(obj.id)}: {error}",
            "Set it with evolve_knowledge.",
            argument="object_id",
        ) from None
    if at_ms is None:
        raise InvalidParameter(
            f"{quoted(obj.id)} has no 'valid_until', so it cannot be past it.",
            "Set one with evolve_knowledge, or name the object of the conflict.",
            argument="object_id",
        )
    return at_ms


def _written(obj: KObject) -> str | None:
    value = obj.structure.get("valid_until")
    return value if isinstance(value, str) else None


async def check_date_now(rt: Runtime, session_id: str, object_id: str) -> None:
    """Reconcile the object's open conflict with the head as it is."""
    async with rt.store.unit() as unit:
        row = await sessions.get_session(unit, session_id)
        if row is None:
            return
        graph = await rt.graphs.graph(row.root, reader=unit)
        now_ms = rt.clock()
        findings = _findings(graph.get(object_id), now_ms)
        outcome = await rt.conflicts.reconcile(
            unit, KIND, session_id, row.head.hex(), findings, [object_id], now_ms
        )
    await rt.journal.told(outcome.events)


def _findings(obj: KObject | None, now_ms: int) -> list[Finding]:
    found = None if obj is None else temporal(obj, now_ms)
    if obj is None or found is None:
        return []
    return [dated_finding(KIND, obj.id, obj.structure.get("valid_until"), found)]


def _check(rt: Runtime, session_id: str, after: KObject) -> Callable[[Unit, Version], Awaitable[list[Event]]]:
    """The rule's verdict on the object as it will be, for the same transaction."""

    async def check(unit: Unit, version: Version) -> list[Event]:
        now_ms = rt.clock()
        findings = _findings(after, now_ms)
        outcome = await rt.conflicts.reconcile(
            unit, KIND, session_id, version.id.hex(), findings, [after.id], now_ms, lambda _: "resolved"
        )
        return list(outcome.events)

    return check


def _message(object_id: str, action: Action, dated: Dated, source: str) -> str:
    was = dated.previous_valid_until
    if action == "archive":
        return (
            f"Temporal conflict of {quoted(object_id, 200)} by {source}: archived, it was valid until {was}"
        )
    return (
        f"Temporal conflict of {quoted(object_id, 200)} by {source}: valid until {dated.new_valid_until}, "
        f"not {was}"
    )


def _expired(graph: Graph, object_id: str, now_ms: int) -> Diagnostic:
    obj = _object(graph, object_id)
    at_ms = _date(obj)
    found = temporal(obj, now_ms)
    if found is None:
        raise InvalidParameter(
            f"{quoted(object_id)} is not past its date: it is valid until {format_ms(at_ms)} or archived.",
            "There is nothing to ignore; use bump or archive to change the date.",
            argument="action",
        )
    return found


async def _ignore(rt: Runtime, session_id: str, object_id: str, commit: bool) -> Dated:
    if not commit:
        _, graph = await rt.sessions.head(session_id)
        _expired(graph, object_id, rt.clock())
        written = _written(graph[object_id])
        return Dated(True, written, written)
    async with rt.store.unit() as unit:
        now_ms = rt.clock()
        found = await sessions.get_session(unit, session_id)
        if found is None:
            raise not_found(session_id)
        graph = await rt.graphs.graph(found.root, reader=unit)
        diagnostic = _expired(graph, object_id, now_ms)
        finding = dated_finding(KIND, object_id, graph[object_id].structure["valid_until"], diagnostic)
        record_id, events = await rt.conflicts.acknowledge(
            unit, KIND, session_id, found.head.hex(), finding, now_ms
        )
    await rt.journal.told(events)
    written = _written(graph[object_id])
    return Dated(True, written, written, record_id=record_id)
