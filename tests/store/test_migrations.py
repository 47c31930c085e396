"""Every older version of the schema is upgraded with what it held; a newer or an edited one is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cks_runtime.model.errors import StoreUnusable
from cks_runtime.store import migrations as steps
from cks_runtime.store.migrations import APPLICATION_ID, Migration, migrations, schema_digest, upgrade

NEWEST = len(migrations("sqlite"))


def connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def made_at(path: Path, version: int) -> sqlite3.Connection:
    conn = connect(path)
    upgrade(conn, str(path), upto=version)
    return conn


def test_the_first_version_is_marked_as_this_programs() -> None:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    upgrade(conn, "it")
    assert conn.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert conn.execute("SELECT count(*) FROM migrations").fetchone() == (NEWEST,)
    conn.close()


@pytest.mark.parametrize("version", range(1, NEWEST + 1))
def test_every_older_version_becomes_the_newest_and_keeps_its_rows(tmp_path: Path, version: int) -> None:
    path = tmp_path / "old.db"
    old = made_at(path, version)
    old.execute("INSERT INTO meta VALUES ('kept', 'yes')")
    old.execute("INSERT INTO blobs (hash, kind, data) VALUES (x'00', 'object', x'11')")
    old.close()
    conn = connect(path)
    upgrade(conn, str(path))
    assert conn.execute("SELECT value FROM meta WHERE key = 'kept'").fetchone() == ("yes",)
    assert conn.execute("SELECT data FROM blobs").fetchone() == (b"\x11",)
    fresh = made_at(tmp_path / "fresh.db", NEWEST)
    assert schema_digest(conn) == schema_digest(fresh), "an upgraded schema is the newest one"
    fresh.close()
    conn.close()


def test_upgrading_again_changes_nothing(tmp_path: Path) -> None:
    conn = made_at(tmp_path / "new.db", NEWEST)
    changes = conn.total_changes
    upgrade(conn, "new.db")
    assert conn.total_changes == changes and not conn.in_transaction
    conn.close()


def test_a_newer_schema_is_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    conn = made_at(path, NEWEST)
    conn.execute("INSERT INTO migrations VALUES (?, '9999_later.sql', 'x')", (NEWEST + 1,))
    with pytest.raises(StoreUnusable, match="newer version") as caught:
        upgrade(conn, str(path))
    assert str(path) in caught.value.message and not conn.in_transaction
    conn.close()


@pytest.mark.parametrize("version", sorted({1, NEWEST}))
def test_an_edited_migration_is_refused_and_named(tmp_path: Path, version: int) -> None:
    conn = made_at(tmp_path / "old.db", version)
    conn.execute("UPDATE migrations SET checksum = 'another' WHERE number = 1")
    with pytest.raises(StoreUnusable, match="0001_foundation"):
        upgrade(conn, "old.db")
    assert not conn.in_transaction
    conn.close()


def test_a_migration_that_fails_leaves_the_older_version_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = made_at(tmp_path / "old.db", NEWEST)
    before = schema_digest(conn)
    broken = Migration(NEWEST + 1, "broken.sql", "CREATE TABLE later (x);\nINSERT INTO nowhere VALUES (1);\n")
    monkeypatch.setattr(steps, "migrations", lambda dialect: [*migrations(dialect), broken])
    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        upgrade(conn, "old.db")
    assert schema_digest(conn) == before and not conn.in_transaction
    monkeypatch.undo()
    upgrade(conn, "old.db")
    conn.close()


def test_numbers_run_without_a_gap_and_checksums_differ() -> None:
    shipped = migrations("sqlite")
    assert [step.number for step in shipped] == list(range(1, NEWEST + 1))
    assert len({step.checksum for step in shipped}) == NEWEST
