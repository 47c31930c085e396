"""Statements for blobs and versions: content-addressed rows, written once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from cks_runtime.model.canon import Hash
from cks_runtime.model.errors import VersionNotFound
from cks_runtime.model.history import Ancestry, Version, version_from_blob
from cks_runtime.store.columns import binary
from cks_runtime.store.ports import Reader, Row, Unit

BATCH = 500

Kind = Literal["node", "object"]


async def put_blobs(unit: Unit, blobs: Iterable[tuple[Hash, Kind, bytes]]) -> None:
    """Store what is not there yet; one that is there with other bytes was damaged, and is whole again."""
    await unit.execute_many(
        "INSERT INTO blobs (hash, kind, data) VALUES (?, ?, ?) ON CONFLICT (hash) DO UPDATE SET"
        " data = excluded.data WHERE blobs.data <> excluded.data",
        blobs,
    )


async def get_blobs(reader: Reader, hashes: Sequence[Hash]) -> dict[Hash, bytes]:
    """The blobs of these hashes that there are; whoever parses one compares its hash and names what is missing."""
    rows = await _where_in(reader, "SELECT hash, data FROM blobs WHERE hash IN", hashes)
    return {binary(key): binary(data) for key, data in rows}


async def put_version(unit: Unit, version: Version, generation: int) -> None:
    """Store a version with its generation; finding it there already is fine."""
    await unit.execute(
        "INSERT INTO versions (id, generation, parents, data) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        version.id,
        generation,
        b"".join(version.parents),
        version.blob(),
    )


async def get_version(reader: Reader, version_id: Hash) -> Version:
    """One version, checked against its id. Raises VersionNotFound."""
    rows = await reader.fetch("SELECT data FROM versions WHERE id = ?", version_id)
    if not rows:
        raise VersionNotFound(
            f"There is no version {version_id.hex()}.", "Use list_versions to see a session's versions."
        )
    return version_from_blob(binary(rows[0][0]), version_id)


async def get_versions(reader: Reader, version_ids: Sequence[Hash]) -> dict[Hash, Version]:
    """The versions of these ids that exist."""
    rows = await _where_in(reader, "SELECT id, data FROM versions WHERE id IN", version_ids)
    return {binary(key): version_from_blob(binary(data), binary(key)) for key, data in rows}


async def get_ancestry(reader: Reader, version_ids: Sequence[Hash]) -> dict[Hash, Ancestry]:
    """Parents and generation of these versions."""
    rows = await _where_in(reader, "SELECT id, generation, parents FROM versions WHERE id IN", version_ids)
    return {binary(key): Ancestry(_split(binary(parents)), generation) for key, generation, parents in rows}


async def versions_between(reader: Reader, low: Hash, high: Hash, limit: int) -> list[Hash]:
    """Ids from `low` to `high` inclusive, at most `limit`: how a prefix is looked up."""
    rows = await reader.fetch("SELECT id FROM versions WHERE id BETWEEN ? AND ? LIMIT ?", low, high, limit)
    return [binary(row[0]) for row in rows]


def _split(parents: bytes) -> tuple[Hash, ...]:
    return tuple(parents[at : at + 32] for at in range(0, len(parents), 32))


async def _where_in(reader: Reader, sql: str, keys: Sequence[Hash]) -> list[Row]:
    rows: list[Row] = []
    for start in range(0, len(keys), BATCH):
        batch = keys[start : start + BATCH]
        rows += await reader.fetch(f"{sql} ({','.join('?' * len(batch))})", *batch)
    return rows


async def count_blobs(reader: Reader) -> int:
    """How many blobs there are."""
    return int((await reader.fetch("SELECT count(*) FROM blobs"))[0][0])


async def page_blobs(reader: Reader, after: int, limit: int) -> list[tuple[int, Hash, str, bytes]]:
    """(number, hash, kind, data) of blobs by number."""
    rows = await reader.fetch(
        "SELECT blob_no, hash, kind, data FROM blobs WHERE blob_no > ? ORDER BY blob_no LIMIT ?", after, limit
    )
    return [(row[0], binary(row[1]), row[2], binary(row[3])) for row in rows]


async def page_versions(reader: Reader, after: int, limit: int) -> list[tuple[int, Hash, Ancestry, bytes]]:
    """(number, id, parents and generation as stored beside it, data) of versions by number."""
    rows = await reader.fetch(
        "SELECT version_no, id, generation, parents, data FROM versions WHERE version_no > ?"
        " ORDER BY version_no LIMIT ?",
        after,
        limit,
    )
    return [
        (row[0], binary(row[1]), Ancestry(_split(binary(row[3])), row[2]), binary(row[4])) for row in rows
    ]
