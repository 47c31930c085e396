"""A database file: who may read it, who it belongs to, and when the program refuses to start with it."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from processes import Child

from cks_runtime.model.errors import StoreBusy, StoreUnusable
from cks_runtime.store import sqlite
from cks_runtime.store.meta import get_meta, set_meta
from cks_runtime.store.open import open_store


async def make(path: Path) -> None:
    store = await open_store(str(path))
    async with store.unit() as unit:
        await set_meta(unit, "a", "1")
    await store.close()


async def refused(path: Path | str, *words: str) -> None:
    with pytest.raises(StoreUnusable) as caught:
        await open_store(str(path))
    for word in (str(path), *words):
        assert word in caught.value.message
    assert caught.value.hint


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_what_is_made_is_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "cks.db"
    before = os.umask(0)
    try:
        store = await open_store(str(path))
        async with store.unit() as unit:
            await set_meta(unit, "a", "1")
        assert {mode(file) for file in path.parent.iterdir()} == {0o600}
        assert {file.name for file in path.parent.iterdir()} == {"cks.db", "cks.db-wal", "cks.db-shm"}
        assert [mode(path.parent), mode(path.parent.parent)] == [0o700, 0o700]
        await store.close()
    finally:
        os.umask(before)


async def test_a_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    store = await open_store("~/cks.db")
    await store.close()
    assert store.location == str(tmp_path / "cks.db")


async def test_paths_that_cannot_be_a_database(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    await refused(tmp_path)
    await refused(tmp_path / "file" / "cks.db")
    await refused("/dev/null", "regular file")
    await refused("~nobody-of-this-name/cks.db")
    with pytest.raises(StoreUnusable):
        await open_store("nul\0byte")


async def test_postgresql_is_refused_by_name() -> None:
    with pytest.raises(StoreUnusable, match="PostgreSQL"):
        await open_store("postgresql://localhost/cks")


async def test_garbage_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    path.write_bytes(b"not a database, but somebody's notes\n" * 200)
    before = path.read_bytes()
    await refused(path, "not a database")
    assert path.read_bytes() == before


@pytest.mark.parametrize("statement", ["CREATE TABLE notes (x)", "PRAGMA application_id = 252006673"])
async def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "cks.db"
    conn = sqlite3.connect(path)
    conn.execute(statement)
    conn.close()
    before = path.read_bytes()
    await refused(path, "another program")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["cks.db"]


async def test_a_damaged_header_is_refused_or_harmless(tmp_path: Path) -> None:
    """Any byte of the 100 may be wrong: the program starts with all it had, or refuses and names the file."""
    good = tmp_path / "good.db"
    await make(good)
    content = good.read_bytes()
    refusals = 0
    for offset in range(100):
        bad = tmp_path / f"bad-{offset}.db"
        bad.write_bytes(content[:offset] + bytes([content[offset] ^ 0x41]) + content[offset + 1 :])
        try:
            store = await open_store(str(bad))
        except StoreUnusable as error:
            assert str(bad) in error.message
            refusals += 1
            continue
        async with store.reader() as reader:
            assert await get_meta(reader, "a") == "1"
        await store.close()
    assert refusals > 30


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE meta",
        "DROP TABLE migrations",
        "DROP TABLE sessions",
        "DROP INDEX sessions_moved",
        "ALTER TABLE blobs ADD COLUMN more TEXT",
        "CREATE TRIGGER t AFTER INSERT ON blobs BEGIN DELETE FROM blobs; END",
        "DELETE FROM migrations",
        "UPDATE migrations SET checksum = 'edited'",
    ],
)
async def test_a_damaged_schema_is_refused(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "cks.db"
    await make(path)
    conn = sqlite3.connect(path)
    with conn:
        conn.execute(statement)
    conn.close()
    await refused(path)


async def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    await make(path)
    for size in (50, 512, 4096, path.stat().st_size - 4096):
        cut = tmp_path / f"cut-{size}.db"
        cut.write_bytes(path.read_bytes()[:size])
        await refused(cut)


_OPEN_WITHOUT_RIGHTS = """
import os, sys, anyio
from cks_runtime.model.errors import StoreUnusable
from cks_runtime.store.open import open_store
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for path in sys.argv[1:]:
    try:
        anyio.run(open_store, path)
    except StoreUnusable as error:
        assert path in error.message
        print("refused")
"""


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    """As a user without rights: the superuser of a build machine may write everything."""
    path = tmp_path / "cks.db"
    anyio.run(make, path)
    path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    paths = [str(path), str(tmp_path / "new.db"), "/proc/cks/new.db"]
    told = subprocess.run(
        [sys.executable, "-c", _OPEN_WITHOUT_RIGHTS, *paths], capture_output=True, text=True, timeout=60
    )
    assert told.stdout.split() == ["refused"] * 3, told.stderr


def test_the_program_ends_with_a_code_when_the_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    path.write_bytes(b"x" * 5000)
    (told,) = Child("identity", path).finish(code=2)
    assert str(path) in told


def test_eight_processes_make_one_database(tmp_path: Path) -> None:
    path = tmp_path / "new" / "cks.db"
    told = {tuple(child.finish()) for child in [Child("identity", path) for _ in range(8)]}
    assert len(told) == 1


async def test_another_process_holding_the_write_lock_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    store = await open_store(str(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with anyio.create_task_group() as tasks:
        begun = anyio.Event()

        async def wait_for_turn() -> None:
            begun.set()
            async with store.unit() as unit:
                await set_meta(unit, "a", "1")

        tasks.start_soon(wait_for_turn)
        await begun.wait()
        async with store.reader() as reader:
            assert await get_meta(reader, "a") is None, "a reader never waits for a writer"
        other.execute("COMMIT")
    async with store.reader() as reader:
        assert await get_meta(reader, "a") == "1"
    other.close()
    await store.close()


async def test_a_lock_that_is_never_given_back_ends_in_store_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "TURN_WAIT_S", 0.0)
    path = tmp_path / "cks.db"
    store = await open_store(str(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy, match="locked"):
        async with store.unit():
            pytest.fail("there was no turn")
    with pytest.raises(StoreBusy, match="locked"):
        await store.once("DELETE FROM meta")
    other.execute("ROLLBACK")
    async with store.unit() as unit:
        await set_meta(unit, "a", "1")
    other.close()
    await store.close()


async def test_waiting_for_another_processs_lock_can_be_cancelled(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    store = await open_store(str(path))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with anyio.move_on_after(0.05) as scope:
        async with store.unit():
            pytest.fail("there was no turn")
    assert scope.cancelled_caught
    other.execute("COMMIT")
    async with store.unit() as unit:
        await set_meta(unit, "a", "1")
    other.close()
    await store.close()
