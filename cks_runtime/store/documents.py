"""Statements for documents: bodies stored once by hash, versions in a chain, and where each document stands."""

from __future__ import annotations

from collections.abc import Sequence

from cks_runtime.model.canon import Hash
from cks_runtime.model.documents import DocumentVersion
from cks_runtime.model.errors import DamagedBlob
from cks_runtime.store.columns import binary
from cks_runtime.store.ports import Reader, Row, Unit

_COLUMNS = "v.path, v.version, v.previous, v.content, v.author, v.at_ms, v.archived, v.hash"
_HEADS = f"SELECT d.path, d.version, {_COLUMNS} FROM documents d LEFT JOIN document_versions v" + (
    " ON v.path = d.path AND v.version = d.version"
)


def _version(row: Row) -> DocumentVersion:
    path, version, previous, content, author, at_ms, archived, named = row
    return DocumentVersion(
        path=path,
        version=version,
        previous=None if previous is None else binary(previous),
        content=binary(content),
        author=author,
        at_ms=at_ms,
        archived=bool(archived),
        hash=binary(named),
    )


async def head_number(reader: Reader, path: str) -> int | None:
    """The number of the version a document stands at, or None."""
    rows = await reader.fetch("SELECT version FROM documents WHERE path = ?", path)
    return int(rows[0][0]) if rows else None


async def get_head(reader: Reader, path: str) -> DocumentVersion | None:
    """The version a document stands at, or None. Raises DamagedBlob when the row of that version is gone."""
    rows = await reader.fetch(f"{_HEADS} WHERE d.path = ?", path)
    if not rows:
        return None
    if rows[0][2] is None:
        raise DamagedBlob(
            f"Document {path!r} stands at version {rows[0][1]}, which is missing from the database.",
            "Run `cks-mcp check`; restore the file from a copy.",
            path=path,
        )
    return _version(rows[0][2:])


async def page_heads(reader: Reader, prefix: str, after: str, limit: int) -> list[DocumentVersion]:
    """Where the documents whose path begins with `prefix` stand, by path after `after`."""
    # paths with one prefix stand side by side, so the first one without it ends the list
    where, start = ("d.path > ?", after) if after >= prefix else ("d.path >= ?", prefix)
    rows = await reader.fetch(
        f"{_HEADS} WHERE {where} AND v.version IS NOT NULL ORDER BY d.path LIMIT ?", start, limit
    )
    return [_version(row[2:]) for row in rows if row[0].startswith(prefix)]


async def page_paths(reader: Reader, after: str, limit: int) -> list[str]:
    """Every document's path, by path after `after`."""
    rows = await reader.fetch("SELECT path FROM documents WHERE path > ? ORDER BY path LIMIT ?", after, limit)
    return [row[0] for row in rows]


async def get_version(reader: Reader, path: str, version: int) -> DocumentVersion | None:
    """One version, or None."""
    found = await versions_between(reader, path, version, version, 1)
    return found[0] if found else None


async def versions_between(
    reader: Reader, path: str, low: int, high: int, limit: int
) -> list[DocumentVersion]:
    """At most `limit` of the versions from `low` to `high` inclusive, newest first."""
    rows = await reader.fetch(
        f"SELECT {_COLUMNS} FROM document_versions v WHERE v.path = ? AND v.version BETWEEN ? AND ?"
        " ORDER BY v.version DESC LIMIT ?",
        path,
        low,
        high,
        limit,
    )
    return [_version(row) for row in rows]


async def page_links(
    reader: Reader, path: str, after: int, upto: int, limit: int
) -> list[tuple[DocumentVersion, int | None]]:
    """Versions numbered above `after`, oldest first, each with its body's bytes (None: there is no body)."""
    rows = await reader.fetch(
        f"SELECT length(b.data), {_COLUMNS} FROM document_versions v LEFT JOIN document_bodies b"
        " ON b.hash = v.content WHERE v.path = ? AND v.version > ? AND v.version <= ? ORDER BY v.version LIMIT ?",
        path,
        after,
        upto,
        limit,
    )
    return [(_version(row[1:]), None if row[0] is None else int(row[0])) for row in rows]


async def get_bodies(reader: Reader, hashes: Sequence[Hash]) -> dict[Hash, bytes]:
    """The bodies of these hashes that exist; whoever uses one compares its hash."""
    rows = await reader.fetch(
        f"SELECT hash, data FROM document_bodies WHERE hash IN ({','.join('?' * len(hashes))})", *hashes
    )
    return {binary(key): binary(data) for key, data in rows}


async def put_version(unit: Unit, version: DocumentVersion, body: bytes | None) -> None:
    """Store a version and move the document to it; `body` None: its content is stored already."""
    if body is not None:
        await unit.execute(
            "INSERT INTO document_bodies (hash, data) VALUES (?, ?) ON CONFLICT (hash)"
            " DO UPDATE SET data = excluded.data WHERE document_bodies.data <> excluded.data",  # heals a damaged one
            version.content,
            body,
        )
    await unit.execute(
        "INSERT INTO document_versions (path, version, previous, content, author, at_ms, archived, hash)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        version.path,
        version.version,
        version.previous,
        version.content,
        version.author,
        version.at_ms,
        int(version.archived),
        version.hash,
    )
    await unit.execute(
        "INSERT INTO documents (path, version) VALUES (?, ?)"
        " ON CONFLICT (path) DO UPDATE SET version = excluded.version",
        version.path,
        version.version,
    )
