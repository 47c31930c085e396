"""Numbered SQL migrations with checksums, and the refusal of any file that is not this program's sound database.

Runs on a plain synchronous connection before anything else opens the file.
"""

from __future__ import annotations

import hashlib
import sqlite3
from dataclasses import dataclass
from importlib import resources

from cks_runtime.model.errors import StoreUnusable

APPLICATION_ID = 0x434B5331  # "CKS1"

_LEDGER = (
    "CREATE TABLE migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, checksum TEXT NOT NULL) STRICT"
)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema; `checksum` is the SHA-256 of its text."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations(dialect: str) -> list[Migration]:
    """The shipped migrations of one dialect in order; numbers run from 1 without a gap."""
    folder = resources.files("cks_runtime.store") / "schema" / dialect
    found = []
    for entry in folder.iterdir():
        if entry.name.endswith(".sql"):
            found.append(Migration(int(entry.name[:4]), entry.name, entry.read_text(encoding="utf-8")))
    found.sort(key=lambda m: m.number)
    assert [m.number for m in found] == list(range(1, len(found) + 1)), "migration numbers have a gap"
    return found


def upgrade(conn: sqlite3.Connection, location: str, upto: int | None = None) -> None:
    """Bring the database to the newest schema, or to `upto`, inside one transaction.

    Raises StoreUnusable for another program's database, a newer schema, an edited migration or a damaged schema.
    """
    shipped = migrations("sqlite")
    if upto is None and _is_current(conn, shipped, location):
        return
    conn.execute("BEGIN IMMEDIATE")
    try:
        refuse_foreign(conn, location)
        done = _applied(conn, location)
        _compare(done, shipped, location)
        if done:
            _check_schema(conn, location)
        for step in shipped[len(done) : upto]:
            for statement in _statements(step.text):
                conn.execute(statement)
            conn.execute("INSERT INTO migrations VALUES (?, ?, ?)", (step.number, step.name, step.checksum))
        conn.execute(
            "INSERT INTO meta VALUES ('schema_digest', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (schema_digest(conn),),
        )
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


def refuse_foreign(conn: sqlite3.Connection, location: str) -> None:
    """Raises StoreUnusable for another program's database, before anything in the file is changed."""
    # in this order: another process may be making the file, and both come with one commit
    empty = not conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application_id = conn.execute("PRAGMA application_id").fetchone()[0]
    if application_id != APPLICATION_ID and not (empty and application_id == 0):
        raise StoreUnusable(
            f"{location} is a database of another program or its header is damaged.",
            "Set CKS_MCP_DB_PATH to another file, or restore this one from a copy.",
        )


def schema_digest(conn: sqlite3.Connection) -> str:
    """A digest over the definition of every table, index and trigger in the file."""
    rows = conn.execute(
        "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master WHERE name NOT LIKE 'sqlite_stat%'"
        " ORDER BY type, name"
    ).fetchall()
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def _is_current(conn: sqlite3.Connection, shipped: list[Migration], location: str) -> bool:
    """Whether nothing is to be done; seen in one read transaction, since another process may be upgrading."""
    conn.execute("BEGIN")
    try:
        if not conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return False
        done = _applied(conn, location)
        _compare(done, shipped, location)
        if len(done) < len(shipped):
            return False
        _check_schema(conn, location)
        return True
    finally:
        conn.execute("ROLLBACK")


def _applied(conn: sqlite3.Connection, location: str) -> list[tuple[int, str, str]]:
    tables = {row[0] for row in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        conn.execute(_LEDGER)
        return []
    if "migrations" not in tables:
        raise StoreUnusable(
            f"{location}: the schema is damaged (its list of migrations is missing).",
            "Restore the file from a copy.",
        )
    return conn.execute("SELECT number, name, checksum FROM migrations ORDER BY number").fetchall()


def _compare(done: list[tuple[int, str, str]], shipped: list[Migration], location: str) -> None:
    if len(done) > len(shipped):
        raise StoreUnusable(
            f"{location} was written by a newer version of this program (schema {len(done)}, known {len(shipped)}).",
            "Upgrade this program, or use another file.",
        )
    for (number, name, checksum), step in zip(done, shipped, strict=False):
        if number != step.number or checksum != step.checksum:
            raise StoreUnusable(
                f"{location}: the checksum of migration {name} does not match this program's.",
                "Restore the file from a copy, or use the version of the program that wrote it.",
            )


def _check_schema(conn: sqlite3.Connection, location: str) -> None:
    stored = conn.execute("SELECT value FROM meta WHERE key = 'schema_digest'").fetchone()
    if stored is None or stored[0] != schema_digest(conn):
        raise StoreUnusable(
            f"{location}: the schema is damaged (a table or index is missing or was changed).",
            "Restore the file from a copy.",
        )


def _statements(text: str) -> list[str]:
    statements, pending = [], ""
    for line in text.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            statements.append(pending)
            pending = ""
    assert not pending.strip(), "a migration ends in the middle of a statement"
    return statements
