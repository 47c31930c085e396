"""Statements for sessions: a named line of work with one own head."""

from __future__ import annotations

from dataclasses import dataclass

from cks_runtime.model.canon import Hash
from cks_runtime.store.columns import binary
from cks_runtime.store.ports import Reader, Row, Unit


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as stored; `root`, `closed` and `generation` are those of its head version.

    A generation below 0 says that the head version is missing: a damaged session, which can be read but not moved.
    """

    session_id: str
    title: str
    fork_session: str | None
    fork_version: Hash
    head: Hash
    root: Hash
    closed: bool
    created_at_ms: int
    moved_at_ms: int
    moved_seq: int
    generation: int


_COLUMNS = (
    "s.session_id, s.title, s.fork_session, s.fork_version, s.head, s.root, s.closed, s.created_at_ms,"
    " s.moved_at_ms, s.moved_seq, coalesce(v.generation, -1)"
)
_FROM = f"SELECT {_COLUMNS} FROM sessions s LEFT JOIN versions v ON v.id = s.head"


def _session(row: Row) -> SessionRow:
    return SessionRow(
        session_id=row[0],
        title=row[1],
        fork_session=row[2],
        fork_version=binary(row[3]),
        head=binary(row[4]),
        root=binary(row[5]),
        closed=bool(row[6]),
        created_at_ms=row[7],
        moved_at_ms=row[8],
        moved_seq=row[9],
        generation=row[10],
    )


async def get_session(reader: Reader, session_id: str) -> SessionRow | None:
    """The session, or None."""
    rows = await reader.fetch(f"{_FROM} WHERE s.session_id = ?", session_id)
    return _session(rows[0]) if rows else None


async def page_sessions(reader: Reader, closed: bool | None, after: str, limit: int) -> list[SessionRow]:
    """Sessions by id after `after`; `closed` None means both states."""
    where, params = "s.session_id > ?", [after]
    if closed is not None:
        where += f" AND s.closed = {int(closed)}"
    rows = await reader.fetch(f"{_FROM} WHERE {where} ORDER BY s.session_id LIMIT ?", *params, limit)
    return [_session(row) for row in rows]


async def moved_sessions(reader: Reader, since_seq: int, limit: int) -> list[SessionRow]:
    """Sessions whose head moved after journal number `since_seq`, in the order of their moves."""
    rows = await reader.fetch(f"{_FROM} WHERE s.moved_seq > ? ORDER BY s.moved_seq LIMIT ?", since_seq, limit)
    return [_session(row) for row in rows]


async def session_roots(reader: Reader) -> list[tuple[str, Hash, Hash]]:
    """(session id, head, root) of every session."""
    rows = await reader.fetch("SELECT session_id, head, root FROM sessions")
    return [(row[0], binary(row[1]), binary(row[2])) for row in rows]


async def insert_session(unit: Unit, row: SessionRow) -> bool:
    """Make the session; False when another one of this id was made first."""
    made = await unit.fetch(
        "INSERT INTO sessions (session_id, title, fork_session, fork_version, head, root, closed, created_at_ms,"
        " moved_at_ms, moved_seq) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (session_id) DO NOTHING RETURNING session_id",
        row.session_id,
        row.title,
        row.fork_session,
        row.fork_version,
        row.head,
        row.root,
        int(row.closed),
        row.created_at_ms,
        row.moved_at_ms,
        row.moved_seq,
    )
    return bool(made)


async def put_merge(unit: Unit, session_id: str, version: Hash, previous: Hash) -> None:
    """Note which parent of a merge was the session's own head."""
    await unit.execute(
        "INSERT INTO merges (session_id, version, previous) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
        session_id,
        version,
        previous,
    )


async def own_parent(reader: Reader, session_id: str, version: Hash) -> Hash | None:
    """The parent of a merge that was the session's own head; None for a merge made elsewhere."""
    rows = await reader.fetch(
        "SELECT previous FROM merges WHERE session_id = ? AND version = ?", session_id, version
    )
    return binary(rows[0][0]) if rows else None


async def move_head(
    unit: Unit, session_id: str, expected: Hash, head: Hash, root: Hash, closed: bool, at_ms: int, seq: int
) -> bool:
    """Compare-and-swap of a session's head; False when it was not `expected`."""
    moved = await unit.fetch(
        "UPDATE sessions SET head = ?, root = ?, closed = ?, moved_at_ms = ?, moved_seq = ?"
        " WHERE session_id = ? AND head = ? RETURNING session_id",
        head,
        root,
        int(closed),
        at_ms,
        seq,
        session_id,
        expected,
    )
    return bool(moved)
