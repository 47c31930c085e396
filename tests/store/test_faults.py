"""What a full disk, a power cut and a kill leave behind."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from processes import Child

from cks_runtime.model.errors import DamagedBlob, StoreFull
from cks_runtime.store.meta import get_meta, set_meta
from cks_runtime.store.open import open_store
from cks_runtime.store.ports import Store
from cks_runtime.store.sqlite import SqliteStore, open_sqlite

COMMITS = 40


async def commit(store: Store, number: int) -> None:
    async with store.unit() as unit:
        await set_meta(unit, "newest", str(number))
        await set_meta(unit, f"row-{number}", "x" * 200)


async def newest(store: Store) -> int:
    """The last commit that stands, with all before it and nothing of any other."""
    async with store.reader() as reader:
        last = int(await get_meta(reader, "newest") or 0)
        rows = await reader.fetch("SELECT key FROM meta WHERE key LIKE 'row-%'")
    assert {row[0] for row in rows} == {f"row-{number}" for number in range(1, last + 1)}
    return last


async def page_limit(store: SqliteStore, pages: int) -> None:
    async with store.unit() as unit:
        await unit.fetch(f"PRAGMA max_page_count = {pages}")


async def test_a_full_disk_is_a_clean_error_and_the_next_write_works(tmp_path: Path) -> None:
    store = await open_sqlite(str(tmp_path / "cks.db"))
    await commit(store, 1)
    async with store.reader() as reader:
        ((pages,),) = await reader.fetch("PRAGMA page_count")
    await page_limit(store, pages)
    with pytest.raises(StoreFull, match="full"):
        for number in range(2, 1000):
            await commit(store, number)
    stands = await newest(store)
    assert stands >= 1
    with pytest.raises(StoreFull):
        await store.once("INSERT INTO meta (key, value) VALUES ('big', ?)", "x" * 100_000)
    await page_limit(store, pages + 100)
    await commit(store, stands + 1)
    assert await newest(store) == stands + 1
    await store.close()


async def test_a_swallowed_full_disk_cannot_commit_half(tmp_path: Path) -> None:
    store = await open_sqlite(str(tmp_path / "cks.db"))
    async with store.reader() as reader:
        ((pages,),) = await reader.fetch("PRAGMA page_count")
    await page_limit(store, pages)
    with pytest.raises(StoreFull):
        async with store.unit() as unit:
            await set_meta(unit, "a", "1")
            await set_meta(unit, "b", "x" * 1_000_000)
    async with store.reader() as reader:
        assert await get_meta(reader, "a") is None
    await store.close()


def test_writes_that_fail_at_every_size_of_the_log(tmp_path: Path) -> None:
    """Promise 7: each fault is a clean error, and the same process writes on once there is space."""
    lines = Child("fill", tmp_path / "cks.db", 4096).finish()
    assert lines.count("full") >= 10
    acknowledged = lines[-1].split()
    (shown,) = Child("show", tmp_path / "cks.db", "s").finish()
    assert shown.split() == sorted(acknowledged)


async def written(folder: Path) -> None:
    """A database whose commits are all in the write-ahead log, as a power cut finds it."""
    base = await open_store(str(folder / "cks.db"))
    await base.close()
    store = await open_store(str(folder / "cks.db"))
    for number in range(1, COMMITS + 1):
        await commit(store, number)
    for name in ("cks.db", "cks.db-wal"):
        shutil.copy(folder / name, folder / f"{name}.cut")
    await store.close()


def after_the_cut(folder: Path, wal: bytes) -> Path:
    for old in folder.glob("again.db*"):
        old.unlink()
    (folder / "again.db-wal").write_bytes(wal)
    return shutil.copy(folder / "cks.db.cut", folder / "again.db")


async def reopened(folder: Path, wal: bytes) -> int:
    """What stands after a start with this write-ahead log; the database writes on."""
    store = await open_store(str(after_the_cut(folder, wal)))
    stands = await newest(store)
    await commit(store, stands + 1)
    assert await newest(store) == stands + 1
    assert await store.check() == []
    await store.close()
    return stands


async def test_a_power_cut_leaves_a_prefix_of_the_commits(tmp_path: Path) -> None:
    """Promise 6: cut at any byte, the later commits are gone and the earlier ones whole."""
    await written(tmp_path)
    wal = (tmp_path / "cks.db-wal.cut").read_bytes()
    rng = random.Random(6)
    cuts = sorted([0, 1, 31, 32, 33, len(wal) - 1, len(wal), *(rng.randrange(len(wal)) for _ in range(50))])
    stands = [await reopened(tmp_path, wal[:cut]) for cut in cuts]
    assert stands == sorted(stands), "a longer log never holds less"
    assert stands[0] == 0 and stands[-1] == COMMITS
    assert len(set(stands)) > 10


async def test_a_garbled_log_leaves_a_prefix_of_the_commits(tmp_path: Path) -> None:
    """Promise 6: sectors that never reached the disk, or hold something else."""
    await written(tmp_path)
    wal = (tmp_path / "cks.db-wal.cut").read_bytes()
    rng = random.Random(66)
    for _ in range(40):
        garbled = bytearray(wal)
        at = rng.randrange(len(wal))
        size = rng.choice((1, 512, 4096))
        garbled[at : at + size] = rng.choice((bytes(size), rng.randbytes(size)))
        assert 0 <= await reopened(tmp_path, bytes(garbled[: len(wal)])) <= COMMITS


async def test_a_damaged_page_is_an_error_of_that_call(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    store = await open_sqlite(str(path))
    for number in range(1, 200):
        await commit(store, number)
    async with store.reader() as reader:
        ((page,),) = await reader.fetch("SELECT rootpage FROM sqlite_master WHERE name = 'journal'")
    await store.close()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096
    path.write_bytes(bytes(content))
    store = await open_sqlite(str(path))
    async with store.reader() as reader:
        with pytest.raises(DamagedBlob, match="damaged"):
            await reader.fetch("SELECT count(*), max(body) FROM journal")
        assert await get_meta(reader, "newest") == "199"
    await commit(store, 200)
    assert await store.check() != []
    await store.close()
