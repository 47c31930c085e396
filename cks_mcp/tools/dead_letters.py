"""The tool that shows what nobody could settle, each with the call that would go on with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cks_mcp.answers import Result, fitting
from cks_mcp.arguments import Args
from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_mcp.tools.agent import AllSessions, TaskType
from cks_mcp.tools.common import Cursor, Limit, from_cursor, to_cursor
from cks_mcp.trimming import trimmed
from cks_runtime.model.diagnostics import CONFIDENCE_CONFLICT, STALE_PREMISE
from cks_runtime.model.errors import InvalidParameter
from cks_runtime.model.knowledge import check_session_id
from cks_runtime.model.outbox import Dead
from cks_runtime.model.times import format_ms
from cks_runtime.store.outbox import TaskRow

dead_letters = Toolset("conflicts")

PAYLOAD_BYTES_MAX = 6_000  # a longer one is cut: the conflict's record has it whole
ITEMS_MAX = 100  # what one arbitration takes


class DeadLettersArgs(Args):
    task_type: TaskType = None
    session_id: AllSessions = None
    limit: Limit = 50
    cursor: Cursor = None


class DeadLetters(Result):
    """`suggestion` is the next call to make: {tool, arguments, note}. Without an outbox: supported false alone."""

    supported: bool
    tasks: list[dict[str, Any]] | None = None
    next_cursor: str | None = None


@dead_letters.tool(read_only=True)
async def list_dead_lettered_conflicts(ctx: Ctx, args: DeadLettersArgs) -> DeadLetters:
    """Conflicts whose workers gave up, oldest first, with the last error and the call that would go on with each.

    Use it to find what needs a person; for all open conflicts use the list tools with state=open.
    """
    outbox = ctx.app.rt.outbox
    if not outbox.supported:
        return DeadLetters(supported=False)
    session_id = None if args.session_id is None else check_session_id(args.session_id)
    after = _place(args.cursor)
    rows = await outbox.page("DEAD", args.task_type, session_id, after, args.limit + 1)
    shown = [_shown(row) for row in rows[: args.limit]]
    count = fitting(shown)
    last = rows[count - 1] if count < len(rows) else None
    return DeadLetters(
        supported=True,
        tasks=shown[:count],
        next_cursor=None if last is None else to_cursor("dead-letters", [last.created_at_ms, last.task_id]),
    )


def _place(cursor: str | None) -> tuple[int, str] | None:
    match from_cursor("dead-letters", cursor, list):
        case None:
            return None
        case [int(created_at_ms), str(task_id)] if abs(created_at_ms) < 1 << 62:
            return created_at_ms, task_id
        case _:
            raise InvalidParameter(
                "cursor is not one that list_dead_lettered_conflicts gave.",
                "Leave cursor out to start again.",
                argument="cursor",
            )


def _shown(row: TaskRow) -> dict[str, Any]:
    assert isinstance(row.state, Dead), "only dead tasks are read"
    payload = row.payload()
    return {
        "task_id": row.task_id,
        "task_type": row.task_type,
        "session_id": row.session_id,
        "payload": trimmed(payload, PAYLOAD_BYTES_MAX),
        "attempts": row.state.attempts,
        "last_error": row.state.error,
        "created_at": format_ms(row.created_at_ms),
        "dead_at": None if row.state.at_ms is None else format_ms(row.state.at_ms),
        "suggestion": suggestion(row.task_type, row.task_id, row.session_id, payload),
    }


def suggestion(task_type: str, task_id: str, session_id: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """The next tool call for a dead task: `{tool, arguments, note}`; the note says what is left to choose.

    A payload that lacks what the call needs is suggested for another try.
    """
    found = None
    match task_type:
        case "gossip_conflict":
            found = _gossip(session_id, payload)
        case "inference_conflict":
            found = _inference(session_id, payload)
        case "provenance_conflict":
            found = _provenance(session_id, payload)
        case "temporal_conflict":
            found = _temporal(session_id, payload)
        case "crdt_fork":
            found = _fork(payload)
    return found or {
        "tool": "retry_dead_letter",
        "arguments": {"task_id": task_id},
        "note": "Mend what last_error tells first.",
    }


def _gossip(session_id: str, payload: Mapping[str, Any]) -> dict[str, Any] | None:
    source = payload.get("source_session_id")
    if not isinstance(source, str) or not source:
        return None
    return {
        "tool": "merge_branch",
        "arguments": {"target_session_id": session_id, "source_session_id": source, "dry_run": True},
        "note": "Shows both sides; merge with resolutions, or resolve_gossip_conflict with auto_resolve=true.",
    }


def _inference(session_id: str, payload: Mapping[str, Any]) -> dict[str, Any] | None:
    conclusions = _fields(payload, CONFIDENCE_CONFLICT, "conclusion_id")[:ITEMS_MAX]
    premises = _fields(payload, STALE_PREMISE, "premise_id")[:ITEMS_MAX]
    if not conclusions and not premises:
        return None
    arguments: dict[str, Any] = {"session_id": session_id}
    if len(conclusions) == 1:
        arguments["conclusion_id"] = conclusions[0]
    elif conclusions:
        arguments["conclusion_ids"] = conclusions
    if premises:
        arguments["stale_premise_ids"] = premises
    if conclusions:
        note = "Shows the steps; then add winner_id (or winners), reasoning and commit=true, or auto_resolve=true."
    else:
        arguments["commit"] = True
        note = "Each step that cites a replaced premise is rewritten to the current one."
    return {"tool": "arbitrate_inference_conflict", "arguments": arguments, "note": note}


def _provenance(session_id: str, payload: Mapping[str, Any]) -> dict[str, Any] | None:
    for found in _diagnostics(payload):
        record, subject, url = (found.get(key) for key in ("record_id", "subject_id", "source_url"))
        if record and subject and url:
            return {
                "tool": "refresh_verification",
                "arguments": {
                    "session_id": session_id,
                    "record_id": record,
                    "subject_id": subject,
                    "source_url": url,
                    "commit": True,
                },
                "note": "Fetches the source again; give another source_url if it moved.",
            }
    return None


def _temporal(session_id: str, payload: Mapping[str, Any]) -> dict[str, Any] | None:
    ids = payload.get("object_ids")
    if not isinstance(ids, list) or not ids:
        return None
    return {
        "tool": "resolve_temporal_conflict",
        "arguments": {"session_id": session_id, "object_id": ids[0], "action": "bump", "commit": True},
        "note": "bump if the fact still holds, archive if it does not, ignore to acknowledge it.",
    }


def _fork(payload: Mapping[str, Any]) -> dict[str, Any] | None:
    key = payload.get("key")
    if not isinstance(key, str) or not key:
        return None
    return {
        "tool": "get_pointer",
        "arguments": {"key": key},
        "note": "Shows the values that stand side by side; set_pointer with the right one ends the fork.",
    }


def _diagnostics(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = payload.get("diagnostics")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _fields(payload: Mapping[str, Any], code: str, key: str) -> list[str]:
    found = (entry.get(key) for entry in _diagnostics(payload) if entry.get("code") == code)
    return list(dict.fromkeys(value for value in found if isinstance(value, str)))
