"""Statements for the outbox: tasks stored in the transaction that raised their conflict, claimed under a lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

import orjson

from cks_runtime.model.canon import Json
from cks_runtime.model.outbox import (
    NO_ATTEMPTS_LEFT,
    Claim,
    Dead,
    Done,
    Leased,
    Ready,
    RetryPolicy,
    State,
)
from cks_runtime.store.ports import Reader, Row, Store, Unit

TASK_TYPES = (
    "gossip_conflict",
    "inference_conflict",
    "provenance_conflict",
    "temporal_conflict",
    "crdt_fork",
    "enrichment_request",
)

Status = Literal["PENDING", "IN_PROGRESS", "DEAD"]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task on the queue. `dedupe_key` is its conflict's record id where it has one."""

    task_id: str
    task_type: str
    session_id: str
    payload_text: str
    created_at_ms: int
    dedupe_key: str
    state: State

    def payload(self) -> dict[str, Any]:
        """What a resolver needs to know. A text that is no JSON object does not stop the queue: it is shown as is."""
        try:
            found = orjson.loads(self.payload_text)
        except orjson.JSONDecodeError:
            found = None
        return found if isinstance(found, dict) else {"unreadable": self.payload_text[:2000]}


_COLUMNS = (
    "task_id, task_type, session_id, payload, created_at, dedupe_key, status, attempts, next_retry_at, last_error,"
    " claimed_by, claim_token, lease_until, lease_ms, lease_boot_id, dead_at"
)


def _task(row: Row) -> TaskRow:
    status, attempts, due_ms, error, owner, token, until_ms, length_ms, boot_id, dead_at_ms = row[6:]
    state: State
    match status:
        case "PENDING":
            state = Ready(attempts, due_ms, error)
        case "IN_PROGRESS":
            # a lease without an end or a boot is one that ended
            lease = (until_ms or 0, length_ms or 0, boot_id or "")
            state = Leased(attempts, owner or "", token or "", *lease, error)
        case _:
            state = Dead(attempts, error, dead_at_ms)
    return TaskRow(row[0], row[1], row[2], row[3], row[4], row[5], state)


async def put_task(
    unit: Unit,
    task_id: str,
    task_type: str,
    session_id: str,
    payload: Mapping[str, Json],
    dedupe_key: str,
    now_ms: int,
) -> None:
    """Queue a task, as `put_tasks` does several."""
    await put_tasks(unit, task_type, session_id, {dedupe_key: (task_id, payload)}, now_ms)


async def put_tasks(
    unit: Unit,
    task_type: str,
    session_id: str,
    tasks: Mapping[str, tuple[str, Mapping[str, Json]]],
    now_ms: int,
) -> None:
    """Queue tasks of one type and session, dedupe key -> (task id, payload).

    One task a dedupe key: a waiting or running one gets the new payload, a dead one lives again.
    """
    await unit.execute_many(
        "INSERT INTO cks_outbox_tasks (task_id, task_type, session_id, payload, status, attempts, next_retry_at,"
        " created_at, dedupe_key) VALUES (?, ?, ?, ?, 'PENDING', 0, ?, ?, ?)"
        " ON CONFLICT (dedupe_key) DO UPDATE SET payload = excluded.payload,"
        " next_retry_at = CASE WHEN cks_outbox_tasks.status = 'DEAD' THEN excluded.next_retry_at"
        "  ELSE cks_outbox_tasks.next_retry_at END,"
        " attempts = CASE WHEN cks_outbox_tasks.status = 'DEAD' THEN 0 ELSE cks_outbox_tasks.attempts END,"
        " dead_at = NULL,"
        " status = CASE WHEN cks_outbox_tasks.status = 'DEAD' THEN 'PENDING' ELSE cks_outbox_tasks.status END",
        [
            (task_id, task_type, session_id, orjson.dumps(payload).decode(), now_ms, now_ms, key)
            for key, (task_id, payload) in tasks.items()
        ],
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


_WAITING = (
    "SELECT * FROM (SELECT task_id, 1 AS place, next_retry_at AS since FROM cks_outbox_tasks"
    " WHERE status = 'PENDING' AND task_type = ?{session} AND next_retry_at <= ? ORDER BY next_retry_at LIMIT 1) AS w"
)
_LAPSED = (
    "SELECT * FROM (SELECT task_id, 0 AS place, 0 AS since FROM cks_outbox_tasks"
    " WHERE status = 'IN_PROGRESS' AND {lapse} AND task_type IN ({types}){session} LIMIT 1) AS l"
)
# one seek each: own boot and past, own boot and too far ahead, other boots, no boot
_LAPSES = (
    "lease_boot_id = ? AND lease_until <= {now}",
    "lease_boot_id = ? AND lease_until > {now} + ? AND lease_until > {now} + coalesce(lease_ms, 0)",
    "lease_boot_id < ?",
    "lease_boot_id > ?",
    "lease_boot_id IS NULL",
)


@lru_cache(maxsize=64)
def _claim_sql(now_sql: str, types: int, by_session: bool) -> tuple[str, str]:
    """The statement that claims and the one that buries. Both look at ended leases first, then at the longest due."""
    session = " AND session_id = ?" if by_session else ""
    marks = ",".join("?" * types)
    lapses = [lapse.format(now=now_sql) for lapse in _LAPSES]
    arms = [_LAPSED.format(lapse=lapse, types=marks, session=session) for lapse in lapses]
    arms += [_WAITING.format(session=session)] * types
    pick = f"SELECT task_id FROM ({' UNION ALL '.join(arms)}) AS found ORDER BY place, since LIMIT 1"
    return (
        "UPDATE cks_outbox_tasks SET status = 'IN_PROGRESS', attempts = attempts + 1, claimed_by = ?, claim_token = ?,"
        f" lease_until = {now_sql} + ?, lease_ms = ?, lease_boot_id = ? WHERE task_id = ({pick})"
        f" AND attempts < ? RETURNING {_COLUMNS}",
        "UPDATE cks_outbox_tasks SET status = 'DEAD', dead_at = ?, last_error = CASE"
        " WHEN status = 'PENDING' THEN coalesce(last_error, ?)"
        " ELSE 'Attempt ' || attempts || ', by ' || coalesce(claimed_by, '') || ', ended without an answer.' END,"
        " claimed_by = NULL, claim_token = NULL, lease_until = NULL, lease_ms = NULL, lease_boot_id = NULL"
        f" WHERE task_id = ({pick}) AND attempts >= ? RETURNING task_id",
    )


def _pick_params(
    types: Sequence[str], session_id: str | None, length_ms: int, boot_id: str, wall_ms: int
) -> list[object]:
    session = [] if session_id is None else [session_id]
    params: list[object] = []
    for lapse in ((boot_id,), (boot_id, length_ms), (boot_id,), (boot_id,), ()):
        params += [*lapse, *types, *session]
    for task_type in types:
        params += [task_type, *session, wall_ms]
    return params


async def claim_task(
    store: Store,
    types: Sequence[str],
    session_id: str | None,
    claim: Claim,
    boot_id: str,
    wall_ms: int,
    policy: RetryPolicy,
) -> TaskRow | None:
    """Give the next task of these types (in this session) to the claimer; tasks without attempts left turn DEAD.

    The lease clock is read by the statement itself: to one that was read before the statement got its turn, a
    lease taken meanwhile would seem to end too far ahead. The statement takes a task only if an attempt is left;
    where it took none, another buries what stood in its way, until nothing does.
    """
    take, bury = _claim_sql(store.lease_now_sql, len(types), session_id is not None)
    pick = _pick_params(types, session_id, claim.length_ms, boot_id, wall_ms)
    lease = (claim.owner, claim.token, claim.length_ms, claim.length_ms, boot_id)
    while True:
        if rows := await store.once(take, *lease, *pick, policy.attempts_max):
            return _task(rows[0])
        if not await store.once(bury, wall_ms, NO_ATTEMPTS_LEFT, *pick, policy.attempts_max):
            return None


async def complete_task(store: Store, task_id: str, token: str, boot_id: str) -> str | None:
    """Take a task off the queue for the holder of a running lease; its dedupe key, or None when it is not theirs."""
    now = store.lease_now_sql
    rows = await store.once(
        "DELETE FROM cks_outbox_tasks WHERE task_id = ? AND status = 'IN_PROGRESS' AND claim_token = ?"
        f" AND lease_boot_id = ? AND lease_until > {now} AND lease_until <= {now} + coalesce(lease_ms, 0)"
        " RETURNING dedupe_key",
        task_id,
        token,
        boot_id,
    )
    return str(rows[0][0]) if rows else None


async def get_task(reader: Reader, task_id: str) -> TaskRow | None:
    """The task, or None when it is not on the queue."""
    rows = await reader.fetch(f"SELECT {_COLUMNS} FROM cks_outbox_tasks WHERE task_id = ?", task_id)
    return _task(rows[0]) if rows else None


async def get_settled(reader: Reader, task_id: str) -> Done | None:
    """How a task that left the queue ended; None when it never was there, or 100,000 others have left since."""
    rows = await reader.fetch(
        "SELECT claim_token FROM outbox_settled WHERE task_id = ? ORDER BY settled_no DESC LIMIT 1", task_id
    )
    return Done(str(rows[0][0])) if rows else None


async def swap_state(unit: Unit, task: TaskRow, after: State) -> bool:
    """Give a task its next state; False when it is no longer in the one that was read."""
    guard, params = _guard(task)
    values: tuple[object, ...]
    match after:
        case Done():
            return bool(
                await unit.fetch(f"DELETE FROM cks_outbox_tasks WHERE {guard} RETURNING task_id", *params)
            )
        case Ready():
            values = ("PENDING", after.attempts, after.due_ms, after.error, *_NO_LEASE, None)
        case Leased():
            lease = (after.owner, after.token, after.until_ms, after.length_ms, after.boot_id)
            values = ("IN_PROGRESS", after.attempts, None, after.error, *lease, None)
        case Dead():
            values = ("DEAD", after.attempts, None, after.error, *_NO_LEASE, after.at_ms)
    rows = await unit.fetch(
        "UPDATE cks_outbox_tasks SET status = ?, attempts = ?, next_retry_at = coalesce(?, next_retry_at),"
        " last_error = ?, claimed_by = ?, claim_token = ?, lease_until = ?, lease_ms = ?, lease_boot_id = ?,"
        f" dead_at = ? WHERE {guard} RETURNING task_id",
        *values,
        *params,
    )
    return bool(rows)


_NO_LEASE = (None, None, None, None, None)


def _guard(task: TaskRow) -> tuple[str, tuple[object, ...]]:
    """The condition that a task is still in the state it was read in."""
    match task.state:
        case Ready(attempts=n):
            found = ("PENDING", n, "")
        case Leased(attempts=n, token=token):
            found = ("IN_PROGRESS", n, token)
        case Dead(attempts=n):
            found = ("DEAD", n, "")
        case Done():
            raise AssertionError("a task that is done has no row")
    return (
        "task_id = ? AND status = ? AND attempts = ? AND coalesce(claim_token, '') = ?",
        (task.task_id, *found),
    )


async def page_tasks(
    reader: Reader,
    status: Status,
    task_type: str | None,
    session_id: str | None,
    after: tuple[int, str] | None,
    limit: int,
) -> list[TaskRow]:
    """Tasks in one status, oldest first, after (created_at in ms, task id). Dead ones are read off an index."""
    where, params = [f"status = '{status}'"], []  # spelt out, so that the index of this status is used
    if task_type is not None:
        where.append("task_type = ?")
        params.append(task_type)
    if session_id is not None:
        where.append("session_id = ?")
        params.append(session_id)
    place: tuple[object, ...] = ()
    if after is not None:
        where.append("(created_at, task_id) > (?, ?)")
        place = after
    rows = await reader.fetch(
        f"SELECT {_COLUMNS} FROM cks_outbox_tasks WHERE {' AND '.join(where)} ORDER BY created_at, task_id LIMIT ?",
        *params,
        *place,
        limit,
    )
    return [_task(row) for row in rows]


async def queue_depths(reader: Reader) -> list[tuple[str, str, int, int]]:
    """(task type, status, count, oldest created_at in ms)."""
    parts = [
        f"SELECT task_type, '{status}', count(*), min(created_at) FROM cks_outbox_tasks WHERE status = '{status}'"
        " GROUP BY task_type"
        for status in get_args(Status)
    ]
    rows = await reader.fetch(f"{' UNION ALL '.join(parts)} ORDER BY 1, 2")
    return [(row[0], row[1], int(row[2]), int(row[3])) for row in rows]
