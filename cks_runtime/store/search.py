"""Full text: objects are indexed by their blob's number when a search first needs them, at most once."""

from __future__ import annotations

from collections.abc import Callable

from cks_runtime.model.canon import Hash
from cks_runtime.store.meta import get_meta, set_meta
from cks_runtime.store.ports import Reader, Unit

_MARK = "search_mark"
INDEX_BATCH = 2000


async def pending_index(reader: Reader) -> bool:
    """Whether there are blobs that the index has not seen."""
    mark = int(await get_meta(reader, _MARK) or 0)
    rows = await reader.fetch("SELECT max(blob_no) FROM blobs")
    return int(rows[0][0] or 0) > mark


async def index_batch(unit: Unit, text_of: Callable[[bytes], str]) -> bool:
    """Index the next blobs in order; False when none was left. `text_of` gives an object's words."""
    mark = int(await get_meta(unit, _MARK) or 0)
    rows = await unit.fetch(
        "SELECT blob_no, kind, data FROM blobs WHERE blob_no > ? ORDER BY blob_no LIMIT ?", mark, INDEX_BATCH
    )
    if not rows:
        return False
    texts = [(number, text_of(bytes(data))) for number, kind, data in rows if kind == "object"]
    await unit.execute_many("INSERT INTO search (rowid, text) VALUES (?, ?)", texts)
    await set_meta(unit, _MARK, str(rows[-1][0]))
    return True


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
    return [(bytes(row[0]), bytes(row[1]), float(row[2])) for row in rows]
