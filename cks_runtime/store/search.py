"""Full text: objects are indexed by their blob's number when a search first needs them, at most once."""

from __future__ import annotations

from collections.abc import Iterable

from cks_runtime.model.canon import Hash
from cks_runtime.store.columns import binary
from cks_runtime.store.meta import get_meta, set_meta
from cks_runtime.store.ports import Reader, Unit

_MARK = "search_mark"
INDEX_BATCH = 1000


async def unindexed(reader: Reader) -> tuple[int, list[tuple[int, str, bytes]]]:
    """How far the index came, and the next blobs it has not seen: (number, kind, data)."""
    mark = await _mark(reader)
    rows = await reader.fetch(
        "SELECT blob_no, kind, data FROM blobs WHERE blob_no > ? ORDER BY blob_no LIMIT ?", mark, INDEX_BATCH
    )
    return mark, [(row[0], row[1], binary(row[2])) for row in rows]


async def put_texts(unit: Unit, mark: int, upto: int, texts: Iterable[tuple[int, str]]) -> None:
    """Index the texts of the blobs after `mark` up to `upto`; nothing happens when another has done so."""
    if await _mark(unit) != mark:
        return
    await unit.execute_many("INSERT INTO search (rowid, text) VALUES (?, ?)", texts)
    await set_meta(unit, _MARK, str(upto))


async def _mark(reader: Reader) -> int:
    return int(await get_meta(reader, _MARK) or 0)


async def search_objects(
    reader: Reader, expression: str, skip: int, limit: int
) -> list[tuple[Hash, bytes, float]]:
    """(hash, blob, score) of matching objects of any version, best first; a higher score is better."""
    rows = await reader.fetch(
        "SELECT b.hash, b.data, -found.rank FROM (SELECT rowid, rank FROM search WHERE search MATCH ?"
        " ORDER BY rank LIMIT ? OFFSET ?) AS found JOIN blobs b ON b.blob_no = found.rowid"
        " ORDER BY found.rank, b.blob_no",
        expression,
        limit,
        skip,
    )
    return [(binary(row[0]), binary(row[1]), float(row[2])) for row in rows]
