"""Statements for the outbox: tasks stored in the transaction that raised their conflict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import orjson

from cks_runtime.model.canon import Json
from cks_runtime.store.ports import Reader, Unit

TASK_TYPES = (
    "gossip_conflict",
    "inference_conflict",
    "provenance_conflict",
    "temporal_conflict",
    "crdt_fork",
    "enrichment_request",
)


async def put_task(
    unit: Unit,
    task_id: str,
    task_type: str,
    session_id: str,
    payload: Mapping[str, Json],
    dedupe_key: str,
    now_ms: int,
) -> None:
    """Queue a task. One task a `dedupe_key`: a waiting or running one gets the new payload, a dead one lives again."""
    await unit.execute(
        "INSERT INTO cks_outbox_tasks (task_id, task_type, session_id, payload, status, attempts, next_retry_at,"
        " created_at, dedupe_key) VALUES (?, ?, ?, ?, 'PENDING', 0, ?, ?, ?)"
        " ON CONFLICT (dedupe_key) DO UPDATE SET payload = excluded.payload,"
        " next_retry_at = CASE WHEN cks_outbox_tasks.status = 'DEAD' THEN excluded.next_retry_at"
        "  ELSE cks_outbox_tasks.next_retry_at END,"
        " attempts = CASE WHEN cks_outbox_tasks.status = 'DEAD' THEN 0 ELSE cks_outbox_tasks.attempts END,"
        " dead_at = NULL,"
        " status = CASE WHEN cks_outbox_tasks.status = 'DEAD' THEN 'PENDING' ELSE cks_outbox_tasks.status END",
        task_id,
        task_type,
        session_id,
        orjson.dumps(payload).decode(),
        now_ms,
        now_ms,
        dedupe_key,
    )


async def refresh_payloads(unit: Unit, payloads: Mapping[str, Mapping[str, Json]]) -> None:
    """Give the tasks of these dedupe keys newer payloads, whatever their state."""
    await unit.execute_many(
        "UPDATE cks_outbox_tasks SET payload = ? WHERE dedupe_key = ?",
        [(orjson.dumps(payload).decode(), key) for key, payload in payloads.items()],
    )


async def remove_tasks(unit: Unit, dedupe_keys: Sequence[str]) -> None:
    """Remove moot tasks, whatever their state."""
    await unit.execute_many(
        "DELETE FROM cks_outbox_tasks WHERE dedupe_key = ?", [(key,) for key in dedupe_keys]
    )


async def queue_depths(reader: Reader) -> list[tuple[str, str, int, int]]:
    """(task type, status, count, oldest created_at in ms)."""
    rows = await reader.fetch(
        "SELECT task_type, status, count(*), min(created_at) FROM cks_outbox_tasks GROUP BY task_type, status"
    )
    return [(row[0], row[1], int(row[2]), int(row[3])) for row in rows]
