"""Statements for gossip: heads of other replicas, refused versions, replicas heard of, and what is missing here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import orjson

from cks_runtime.model.canon import Hash
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.history import Version
from cks_runtime.store.columns import binary
from cks_runtime.store.ports import Reader, Row, Unit

BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class RemoteHead:
    """A head as another replica holds it; `names` are the replicas under which its line is read."""

    session_id: str
    head: Hash
    holder: str
    names: tuple[str, ...]
    record_id: str | None


_COLUMNS = "session_id, head, holder, names, record_id"


def _remote(row: Row) -> RemoteHead:
    return RemoteHead(row[0], binary(row[1]), row[2], tuple(orjson.loads(row[3])), row[4])


async def remote_heads(reader: Reader, session_id: str) -> list[RemoteHead]:
    """The session's rows, by head."""
    rows = await reader.fetch(
        f"SELECT {_COLUMNS} FROM remote_heads WHERE session_id = ? ORDER BY head", session_id
    )
    return [_remote(row) for row in rows]


async def remote_heads_of(reader: Reader, session_ids: Sequence[str]) -> list[RemoteHead]:
    """The rows of these sessions."""
    found: list[RemoteHead] = []
    for start in range(0, len(session_ids), BATCH):
        batch = session_ids[start : start + BATCH]
        rows = await reader.fetch(
            f"SELECT {_COLUMNS} FROM remote_heads WHERE session_id IN ({_marks(batch)})", *batch
        )
        found += [_remote(row) for row in rows]
    return found


async def conflict_heads(reader: Reader) -> list[RemoteHead]:
    """The rows that are part of an open conflict, by session."""
    rows = await reader.fetch(
        f"SELECT {_COLUMNS} FROM remote_heads WHERE record_id IS NOT NULL ORDER BY session_id, holder, head"
    )
    return [_remote(row) for row in rows]


async def replace_remote_heads(unit: Unit, session_id: str, rows: Sequence[RemoteHead]) -> None:
    """Make these the session's rows."""
    await unit.execute("DELETE FROM remote_heads WHERE session_id = ?", session_id)
    await unit.execute_many(
        f"INSERT INTO remote_heads ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)",
        [(r.session_id, r.head, r.holder, orjson.dumps(r.names).decode(), r.record_id) for r in rows],
    )


async def remove_remote_heads(unit: Unit, session_id: str, heads: Iterable[Hash]) -> None:
    """Remove rows whose heads were merged."""
    await unit.execute_many(
        "DELETE FROM remote_heads WHERE session_id = ? AND head = ?", [(session_id, head) for head in heads]
    )


async def refused_among(reader: Reader, ids: Sequence[Hash]) -> dict[Hash, tuple[Diagnostic, ...]]:
    """Those of these versions that are kept as history only, with their ERRORs."""
    found: dict[Hash, tuple[Diagnostic, ...]] = {}
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        rows = await reader.fetch(
            f"SELECT version, diagnostics FROM refused_versions WHERE version IN ({_marks(batch)})", *batch
        )
        found.update((binary(row[0]), _diagnostics(row[1])) for row in rows)
    return found


def _diagnostics(text: str) -> tuple[Diagnostic, ...]:
    fixed = ("code", "severity", "message", "location")
    return tuple(
        Diagnostic(
            one["code"],
            one["severity"],
            one["message"],
            one["location"],
            {key: value for key, value in one.items() if key not in fixed},
        )
        for one in orjson.loads(text)
    )


async def put_refused(unit: Unit, refused: Iterable[tuple[Hash, Sequence[Diagnostic]]]) -> None:
    """Note versions that have ERRORs."""
    await unit.execute_many(
        "INSERT INTO refused_versions (version, diagnostics) VALUES (?, ?) ON CONFLICT DO NOTHING",
        [(id, orjson.dumps([error.as_json() for error in errors[:100]]).decode()) for id, errors in refused],
    )


async def put_versions(unit: Unit, versions: Iterable[tuple[Version, int]]) -> None:
    """Store versions with their generations, parents before children."""
    await unit.execute_many(
        "INSERT INTO versions (id, generation, parents, data) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        [(v.id, generation, b"".join(v.parents), v.blob()) for v, generation in versions],
    )


_TABLES: Final = {
    "version": "SELECT id FROM versions WHERE id IN",
    "node": "SELECT hash FROM blobs WHERE hash IN",
    "object": "SELECT hash FROM blobs WHERE hash IN",
}


async def stored_among(
    reader: Reader, kind: Literal["version", "node", "object"], hashes: Sequence[Hash]
) -> set[Hash]:
    """Those of these that are stored."""
    found: set[Hash] = set()
    for start in range(0, len(hashes), BATCH):
        batch = hashes[start : start + BATCH]
        rows = await reader.fetch(f"{_TABLES[kind]} ({_marks(batch)})", *batch)
        found.update(binary(row[0]) for row in rows)
    return found


async def find_blobs(reader: Reader, hashes: Sequence[Hash]) -> dict[Hash, bytes]:
    """Nodes, objects and versions of these names, as far as they are stored."""
    found: dict[Hash, bytes] = {}
    for start in range(0, len(hashes), BATCH):
        batch = hashes[start : start + BATCH]
        marks = _marks(batch)
        rows = await reader.fetch(f"SELECT hash, data FROM blobs WHERE hash IN ({marks})", *batch)
        found.update((binary(row[0]), binary(row[1])) for row in rows)
        if len(found) < len(batch):
            rows = await reader.fetch(f"SELECT id, data FROM versions WHERE id IN ({marks})", *batch)
            found.update((binary(row[0]), binary(row[1])) for row in rows)
    return found


def _marks(batch: Sequence[object]) -> str:
    return ",".join("?" * len(batch))


async def set_origin(
    unit: Unit, session_id: str, title: str, fork_session: str | None, fork_version: Hash
) -> None:
    """Give a session the title and fork point that stand for its id."""
    await unit.execute(
        "UPDATE sessions SET title = ?, fork_session = ?, fork_version = ? WHERE session_id = ?",
        title,
        fork_session,
        fork_version,
        session_id,
    )


async def put_peers(unit: Unit, heard: Iterable[tuple[str, str | None, int]]) -> None:
    """Note replicas heard of: (replica id, address where we dialled it, epoch ms)."""
    await unit.execute_many(
        "INSERT INTO gossip_peers (replica_id, address, heard_ms) VALUES (?, ?, ?) ON CONFLICT (replica_id)"
        " DO UPDATE SET heard_ms = max(heard_ms, excluded.heard_ms),"
        " address = coalesce(excluded.address, gossip_peers.address)",
        heard,
    )


async def heard_since(reader: Reader, since_ms: int) -> list[str]:
    """Replicas heard of since then."""
    rows = await reader.fetch("SELECT replica_id FROM gossip_peers WHERE heard_ms >= ?", since_ms)
    return [str(row[0]) for row in rows]


async def postpone_task(unit: Unit, dedupe_key: str, due_ms: int) -> None:
    """Let a fresh task wait: another replica is nearer to its session."""
    await unit.execute(
        "UPDATE cks_outbox_tasks SET next_retry_at = ? WHERE dedupe_key = ? AND status = 'PENDING'"
        " AND attempts = 0",
        due_ms,
        dedupe_key,
    )


async def waiting_elsewhere(reader: Reader, now_ms: int) -> list[tuple[str, str]]:
    """(dedupe key, session) of tasks that were never tried and are not due yet."""
    rows = await reader.fetch(
        "SELECT dedupe_key, session_id FROM cks_outbox_tasks WHERE status = 'PENDING' AND attempts = 0"
        " AND next_retry_at > ?",
        now_ms,
    )
    return [(str(row[0]), str(row[1])) for row in rows]
