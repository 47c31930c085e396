"""Statements for the worker processes of a database and their heartbeats."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from cks_runtime.model.canon import Json
from cks_runtime.store.ports import Reader, Unit

BEATS_MISSED_MAX = 3


@dataclass(frozen=True, slots=True)
class AgentRow:
    """A worker process: `owner` names it (program, host, process id), `body` holds what it tells of itself."""

    owner: str
    name: str
    started_at_ms: int
    beat_at_ms: int
    interval_ms: int
    body: dict[str, Json]

    def is_alive(self, now_ms: int) -> bool:
        """Whether a beat came lately; a process that was killed leaves its row behind."""
        return now_ms - self.beat_at_ms <= BEATS_MISSED_MAX * self.interval_ms


async def put_agent(unit: Unit, row: AgentRow) -> None:
    """Store a beat."""
    await unit.execute(
        "INSERT INTO agents (owner, name, started_at_ms, beat_at_ms, interval_ms, body) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (owner) DO UPDATE SET started_at_ms = excluded.started_at_ms,"
        " beat_at_ms = excluded.beat_at_ms, interval_ms = excluded.interval_ms, body = excluded.body",
        row.owner,
        row.name,
        row.started_at_ms,
        row.beat_at_ms,
        row.interval_ms,
        orjson.dumps(row.body).decode(),
    )


async def remove_agent(unit: Unit, owner: str) -> None:
    """Take away the row of a process that ends."""
    await unit.execute("DELETE FROM agents WHERE owner = ?", owner)


async def remove_silent_agents(unit: Unit, before_ms: int) -> None:
    """Take away the rows of processes that were last heard of before a time."""
    await unit.execute("DELETE FROM agents WHERE beat_at_ms < ?", before_ms)


async def list_agents(reader: Reader, limit: int = 100) -> list[AgentRow]:
    """The workers of this database, the longest running first."""
    rows = await reader.fetch(
        "SELECT owner, name, started_at_ms, beat_at_ms, interval_ms, body FROM agents"
        " ORDER BY started_at_ms, owner LIMIT ?",
        limit,
    )
    return [AgentRow(row[0], row[1], row[2], row[3], row[4], orjson.loads(row[5])) for row in rows]
