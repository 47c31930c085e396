"""Statements for the journal: events with a growing number, stored with the fact they tell."""

from __future__ import annotations

from collections.abc import Sequence

from cks_runtime.model.events import Event, event_from_json, event_to_json
from cks_runtime.store.ports import Reader, Unit

APPENDED_AT_ONCE = 100


async def append_events(unit: Unit, events: Sequence[Event]) -> list[Event]:
    """Store events in order; returns them with their numbers."""
    stored: list[Event] = []
    for start in range(0, len(events), APPENDED_AT_ONCE):
        batch = events[start : start + APPENDED_AT_ONCE]
        params = [value for event in batch for value in (event.kind, event.at_ms, event_to_json(event))]
        rows = await unit.fetch(
            f"INSERT INTO journal (kind, at_ms, body) VALUES {', '.join(['(?, ?, ?)'] * len(batch))} RETURNING seq",
            *params,
        )
        # numbers are given in the order of the rows; only the order in which they come back is not promised
        numbers = sorted(row[0] for row in rows)
        stored += [event.model_copy(update={"seq": seq}) for event, seq in zip(batch, numbers, strict=True)]
    return stored


async def read_events(reader: Reader, since: int, limit: int, kinds: Sequence[str] = ()) -> list[Event]:
    """Events numbered above `since`, oldest first; of all kinds when none is named."""
    where = "seq > ?"
    if kinds:
        where += f" AND kind IN ({','.join('?' * len(kinds))})"
    rows = await reader.fetch(
        f"SELECT kind, body, seq FROM journal WHERE {where} ORDER BY seq LIMIT ?", since, *kinds, limit
    )
    return [event_from_json(kind, body, seq) for kind, body, seq in rows]


async def last_seq(reader: Reader) -> int:
    """The newest number; 0 for an empty journal."""
    rows = await reader.fetch("SELECT max(seq) FROM journal")
    return int(rows[0][0] or 0)


async def first_seq(reader: Reader) -> int:
    """The oldest number kept; 0 for an empty journal."""
    rows = await reader.fetch("SELECT min(seq) FROM journal")
    return int(rows[0][0] or 0)


async def trim_events(unit: Unit, before_ms: int, keep_max: int, batch: int) -> int:
    """Remove up to `batch` of the oldest events that are too old or too many; returns how many went."""
    rows = await unit.fetch(
        "DELETE FROM journal WHERE seq IN ("
        " SELECT seq FROM (SELECT seq, at_ms FROM journal ORDER BY seq LIMIT ?) AS oldest"
        " WHERE at_ms < ? OR seq <= (SELECT max(seq) FROM journal) - ?) RETURNING seq",
        batch,
        before_ms,
        keep_max,
    )
    return len(rows)
