"""Statements for conflict records and the claims they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from cks_runtime.model.canon import Hash, Json
from cks_runtime.store.columns import binary
from cks_runtime.store.ports import Reader, Row, Unit


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A conflict record; `body` holds what its kind shows (diagnostics, object ids, heads).

    `notice_no` is the journal number of the event that raised it last: the order of the queue.
    """

    record_id: str
    kind: str
    session_id: str
    state: str
    occurrence: int
    notice_no: int
    detected_at_ms: int
    updated_at_ms: int
    version_id: str
    body: dict[str, Json]
    drained_at_ms: int | None
    closed_at_ms: int | None
    closed_how: str | None

    @property
    def object_ids(self) -> list[Json]:
        """The objects it is about."""
        ids = self.body.get("object_ids")
        return ids if isinstance(ids, list) else []


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """One claim of a record, at the `anchor` in the graph where it can change."""

    claim: Hash
    kind: str
    session_id: str
    anchor: str
    record_id: str
    state: str
    body: dict[str, Json]


_RECORD = (
    "record_id, kind, session_id, state, occurrence, notice_no, detected_at_ms, updated_at_ms, version_id, body,"
    " drained_at_ms, closed_at_ms, closed_how"
)
_CLAIM = "claim, kind, session_id, anchor, record_id, state, body"


def _record(row: Row) -> RecordRow:
    first, body, last = row[:9], row[9], row[10:]
    return RecordRow(*first, _loads(body), *last)  # type: ignore[call-arg]  # columns as in _RECORD


def _claim(row: Row) -> ClaimRow:
    claim, middle, body = row[0], row[1:6], row[6]
    return ClaimRow(binary(claim), *middle, _loads(body))  # type: ignore[call-arg]  # columns as in _CLAIM


def _loads(text: str) -> dict[str, Json]:
    """A stored body. One that is damaged does not hide the others: it is shown as it is."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    return (
        found if isinstance(found, dict) else {"diagnostics": [], "object_ids": [], "unreadable": text[:2000]}
    )


def _text(body: dict[str, Json]) -> str:
    return orjson.dumps(body).decode()


async def get_record(reader: Reader, record_id: str) -> RecordRow | None:
    """The record, or None."""
    return (await get_records(reader, [record_id])).get(record_id)


async def get_records(reader: Reader, record_ids: Sequence[str]) -> dict[str, RecordRow]:
    """Those of these records that there are, by id."""
    rows = await _where_in(reader, f"SELECT {_RECORD} FROM conflicts WHERE record_id IN", [], record_ids)
    return {record.record_id: record for record in map(_record, rows)}


async def _where_in(reader: Reader, sql: str, params: Sequence[object], keys: Sequence[str]) -> list[Row]:
    found: list[Row] = []
    for start in range(0, len(keys), 500):
        batch = keys[start : start + 500]
        found += await reader.fetch(f"{sql} ({','.join('?' * len(batch))})", *params, *batch)
    return found


async def page_records(
    reader: Reader, kind: str, state: str, session_id: str | None, after: int, limit: int
) -> list[RecordRow]:
    """Records by notice number after `after`. `state`: `queued` (open, not drained), `open` or `closed`."""
    where, params = _selection(kind, state, session_id, after)
    rows = await reader.fetch(
        f"SELECT {_RECORD} FROM conflicts WHERE {where} ORDER BY notice_no LIMIT ?", *params, limit
    )
    return [_record(row) for row in rows]


def _selection(kind: str, state: str, session_id: str | None, after: int) -> tuple[str, list[object]]:
    where = ["kind = ?", "notice_no > ?", "state = 'closed'" if state == "closed" else "state = 'open'"]
    params: list[object] = [kind, after]
    if state == "queued":
        where.append("drained_at_ms IS NULL")
    if session_id is not None:
        where.append("session_id = ?")
        params.append(session_id)
    return " AND ".join(where), params


async def session_records(reader: Reader, session_id: str, limit: int) -> list[RecordRow]:
    """Open records of one session, of every kind."""
    rows = await reader.fetch(
        f"SELECT {_RECORD} FROM conflicts WHERE session_id = ? AND state = 'open' ORDER BY notice_no LIMIT ?",
        session_id,
        limit,
    )
    return [_record(row) for row in rows]


async def count_queued(
    reader: Reader, kind: str, session_id: str | None = None, after: int = 0
) -> tuple[int, int | None]:
    """How many notices wait after notice number `after`, and when the oldest of them was detected."""
    where, params = _selection(kind, "queued", session_id, after)
    rows = await reader.fetch(f"SELECT count(*), min(detected_at_ms) FROM conflicts WHERE {where}", *params)
    return int(rows[0][0]), rows[0][1]


async def newest_queued(reader: Reader, kind: str, limit: int) -> list[str]:
    """Ids of the records whose notices wait, newest first."""
    where, params = _selection(kind, "queued", None, 0)
    rows = await reader.fetch(
        f"SELECT record_id FROM conflicts WHERE {where} ORDER BY notice_no DESC LIMIT ?", *params, limit
    )
    return [str(row[0]) for row in rows]


async def count_records(
    reader: Reader, kind: str, state: str, session_id: str | None = None, after: int = 0
) -> int:
    """How many records `page_records` has after notice number `after`."""
    where, params = _selection(kind, state, session_id, after)
    return int((await reader.fetch(f"SELECT count(*) FROM conflicts WHERE {where}", *params))[0][0])


async def count_open(reader: Reader, session_id: str | None = None) -> dict[str, int]:
    """Open records by kind, of one session or of all."""
    only, params = ("", []) if session_id is None else (" AND session_id = ?", [session_id])
    rows = await reader.fetch(
        f"SELECT kind, count(*) FROM conflicts WHERE state = 'open'{only} GROUP BY kind", *params
    )
    return {kind: int(count) for kind, count in rows}


async def drain_records(unit: Unit, record_ids: Sequence[str], at_ms: int) -> list[RecordRow]:
    """Take these notices off the queue; only those nobody took first come back."""
    rows = await unit.fetch(
        "UPDATE conflicts SET drained_at_ms = ? WHERE drained_at_ms IS NULL AND state = 'open'"
        f" AND record_id IN ({','.join('?' * len(record_ids))}) RETURNING {_RECORD}",
        at_ms,
        *record_ids,
    )
    return sorted((_record(row) for row in rows), key=lambda record: record.notice_no)


async def put_record(unit: Unit, record: RecordRow) -> None:
    """Store one record, as `put_records` does several."""
    await put_records(unit, [record])


async def put_records(unit: Unit, records: Sequence[RecordRow]) -> None:
    """Store records, or open closed ones again with these values and new notices."""
    await unit.execute_many(
        f"INSERT INTO conflicts ({_RECORD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (record_id) DO UPDATE SET state = excluded.state, occurrence = excluded.occurrence,"
        " notice_no = excluded.notice_no, detected_at_ms = excluded.detected_at_ms,"
        " updated_at_ms = excluded.updated_at_ms, version_id = excluded.version_id, body = excluded.body,"
        " drained_at_ms = excluded.drained_at_ms, closed_at_ms = excluded.closed_at_ms,"
        " closed_how = excluded.closed_how",
        [
            (
                record.record_id,
                record.kind,
                record.session_id,
                record.state,
                record.occurrence,
                record.notice_no,
                record.detected_at_ms,
                record.updated_at_ms,
                record.version_id,
                _text(record.body),
                record.drained_at_ms,
                record.closed_at_ms,
                record.closed_how,
            )
            for record in records
        ],
    )


async def page_bodies(reader: Reader, after: str, limit: int) -> list[RecordRow]:
    """Records of every kind and state by id."""
    rows = await reader.fetch(
        f"SELECT {_RECORD} FROM conflicts WHERE record_id > ? ORDER BY record_id LIMIT ?", after, limit
    )
    return [_record(row) for row in rows]


async def open_claims(
    reader: Reader, kind: str, session_id: str, anchors: Sequence[str] | None
) -> list[ClaimRow]:
    """Open claims of one kind in a session: at these anchors, or all of them."""
    if anchors is None:
        rows = await reader.fetch(
            f"SELECT {_CLAIM} FROM claims WHERE kind = ? AND session_id = ? AND state = 'open'",
            kind,
            session_id,
        )
        return [_claim(row) for row in rows]
    sql = f"SELECT {_CLAIM} FROM claims WHERE kind = ? AND session_id = ? AND state = 'open' AND anchor IN"
    return [_claim(row) for row in await _where_in(reader, sql, [kind, session_id], anchors)]


async def record_claims(reader: Reader, record_ids: Sequence[str]) -> list[ClaimRow]:
    """Every claim that belongs to one of these records, open and closed."""
    sql = f"SELECT {_CLAIM} FROM claims WHERE record_id IN"
    return [_claim(row) for row in await _where_in(reader, sql, [], record_ids)]


async def put_claims(unit: Unit, claims: Sequence[ClaimRow]) -> None:
    """Store claims, or move known ones to their new record, state and body."""
    await unit.execute_many(
        f"INSERT INTO claims ({_CLAIM}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (claim) DO UPDATE SET"
        " record_id = excluded.record_id, state = excluded.state, body = excluded.body",
        [(c.claim, c.kind, c.session_id, c.anchor, c.record_id, c.state, _text(c.body)) for c in claims],
    )
