"""Statements for sweepers: due times, how far each sweeper came, and short leases that save double work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from cks_runtime.model.canon import Hash
from cks_runtime.store.columns import binary
from cks_runtime.store.ports import LeaseClock, Reader, Unit

DueKind = Literal["temporal", "provenance"]


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A sweeper's durable state.

    `cursor_seq`: journal number up to which moved heads were looked at; `due_mark_ms`: due rows up to this time were
    looked at (None: none yet); `config`: the settings the marks were made under.
    """

    sweeper: str
    cursor_seq: int = 0
    due_mark_ms: int | None = None
    config: str = ""
    last_run_ms: int | None = None
    last_found: int = 0


async def get_sweep(reader: Reader, sweeper: str) -> SweepRow:
    """The sweeper's state; a fresh one when it never ran."""
    rows = await reader.fetch(
        "SELECT sweeper, cursor_seq, due_mark_ms, config, last_run_ms, last_found FROM sweeps WHERE sweeper = ?",
        sweeper,
    )
    return SweepRow(*rows[0]) if rows else SweepRow(sweeper)


async def put_sweep(unit: Unit, row: SweepRow) -> None:
    """Store a sweeper's state."""
    await unit.execute(
        "INSERT INTO sweeps (sweeper, cursor_seq, due_mark_ms, config, last_run_ms, last_found)"
        " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (sweeper) DO UPDATE SET cursor_seq = excluded.cursor_seq,"
        " due_mark_ms = excluded.due_mark_ms, config = excluded.config, last_run_ms = excluded.last_run_ms,"
        " last_found = excluded.last_found",
        row.sweeper,
        row.cursor_seq,
        row.due_mark_ms,
        row.config,
        row.last_run_ms,
        row.last_found,
    )


async def get_mark(reader: Reader, sweeper: str, session_id: str) -> Hash | None:
    """The version of a session that the sweeper looked at last."""
    rows = await reader.fetch(
        "SELECT version FROM sweep_marks WHERE sweeper = ? AND session_id = ?", sweeper, session_id
    )
    return binary(rows[0][0]) if rows else None


async def swap_mark(unit: Unit, sweeper: str, session_id: str, seen: Hash | None, version: Hash) -> bool:
    """Move a mark from `seen` to `version`; False when another sweeper moved it meanwhile."""
    if seen is None:
        rows = await unit.fetch(
            "INSERT INTO sweep_marks (sweeper, session_id, version) VALUES (?, ?, ?)"
            " ON CONFLICT (sweeper, session_id) DO NOTHING RETURNING session_id",
            sweeper,
            session_id,
            version,
        )
    else:
        rows = await unit.fetch(
            "UPDATE sweep_marks SET version = ? WHERE sweeper = ? AND session_id = ? AND version = ?"
            " RETURNING session_id",
            version,
            sweeper,
            session_id,
            seen,
        )
    return bool(rows)


async def put_due(unit: Unit, rows: Iterable[tuple[DueKind, int, Hash, str]]) -> None:
    """Store when objects fall due: (kind, time in ms, object hash, object id)."""
    await unit.execute_many(
        "INSERT INTO due (kind, at_ms, object_hash, object_id) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        rows,
    )


async def due_between(
    reader: Reader, kind: DueKind, after_ms: int | None, upto_ms: int, limit: int
) -> list[tuple[int, Hash, str]]:
    """(time, object hash, object id) due after `after_ms` and not later than `upto_ms`, earliest first.

    A page ends with all rows of its last millisecond, so that a mark on that time skips none.
    """
    low = -(1 << 62) if after_ms is None else after_ms
    rows = await reader.fetch(
        "SELECT at_ms, object_hash, object_id FROM due WHERE kind = ? AND at_ms > ? AND at_ms <= ?"
        " ORDER BY at_ms LIMIT ?",
        kind,
        low,
        upto_ms,
        limit,
    )
    if len(rows) == limit:
        last = rows[-1][0]
        rows = [row for row in rows if row[0] < last]
        rows += await reader.fetch(
            "SELECT at_ms, object_hash, object_id FROM due WHERE kind = ? AND at_ms = ?", kind, last
        )
    return [(row[0], binary(row[1]), row[2]) for row in rows]


async def next_due(reader: Reader, kind: DueKind, after_ms: int | None) -> int | None:
    """The earliest due time after `after_ms`, or None."""
    low = -(1 << 62) if after_ms is None else after_ms
    rows = await reader.fetch("SELECT min(at_ms) FROM due WHERE kind = ? AND at_ms > ?", kind, low)
    return None if rows[0][0] is None else int(rows[0][0])


async def take_lease(unit: Unit, name: str, owner: str, length_ms: int, clock: LeaseClock) -> bool:
    """Take or renew a named lease. One that ends later than now + `length_ms`, or is of another boot, has ended."""
    rows = await unit.fetch(
        "INSERT INTO leases (name, owner, until_ms, boot_id) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
        " owner = excluded.owner, until_ms = excluded.until_ms, boot_id = excluded.boot_id"
        " WHERE leases.owner = excluded.owner OR leases.boot_id <> excluded.boot_id"
        " OR leases.until_ms <= ? OR leases.until_ms > ? RETURNING owner",
        name,
        owner,
        clock.now_ms + length_ms,
        clock.boot_id,
        clock.now_ms,
        clock.now_ms + length_ms,
    )
    return bool(rows)


async def release_lease(unit: Unit, name: str, owner: str) -> None:
    """Give a lease back; nothing happens when it is another's."""
    await unit.execute("DELETE FROM leases WHERE name = ? AND owner = ?", name, owner)
