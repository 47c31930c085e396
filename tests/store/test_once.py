"""A statement as a whole transaction: it takes its turn, commits at once, and can be cancelled only before that."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from cks_runtime.model.errors import InternalError
from cks_runtime.store.ports import LeaseClock
from cks_runtime.store.sqlite import SqliteStore, open_sqlite

PUT = "INSERT INTO meta (key, value) VALUES (?, ?) RETURNING key"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "cks.db")


@pytest.fixture
async def store(path: str) -> AsyncIterator[SqliteStore]:
    opened = await open_sqlite(path, "NORMAL")
    yield opened
    await opened.close()


def stored(path: str) -> set[str]:
    db = sqlite3.connect(path)
    try:
        return {row[0] for row in db.execute("SELECT key FROM meta WHERE key LIKE 'k%'")}
    finally:
        db.close()


async def test_it_is_committed_when_it_returns(store: SqliteStore, path: str) -> None:
    assert await store.once(PUT, "k1", "v") == [("k1",)]
    assert stored(path) == {"k1"}


async def test_it_waits_for_another_process(store: SqliteStore, path: str) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.once, PUT, "k1", "v")
        await anyio.sleep(0.5)
        assert stored(path) == set()
        other.execute("COMMIT")
    other.close()
    assert stored(path) == {"k1"}


async def test_cancelled_before_its_turn_it_does_nothing(store: SqliteStore, path: str) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with anyio.move_on_after(0.1):
        await store.once(PUT, "k1", "v")
    assert time.monotonic() - began < 2
    other.execute("COMMIT")
    other.close()
    await store.once(PUT, "k2", "v")
    assert stored(path) == {"k2"}


async def test_it_never_joins_a_transaction_of_the_same_process(store: SqliteStore, path: str) -> None:
    async def in_a_unit() -> None:
        async with store.unit() as unit:
            await unit.fetch(PUT, "k1", "v")
            await anyio.sleep(0.1)
            raise ZeroDivisionError

    async def alone() -> None:
        await anyio.sleep(0.05)
        await store.once(PUT, "k2", "v")

    with pytest.raises(ExceptionGroup):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(in_a_unit)
            with anyio.CancelScope(shield=True):
                await alone()
    assert stored(path) == {"k2"}


async def test_a_refused_statement_leaves_no_trace(store: SqliteStore, path: str) -> None:
    await store.once(PUT, "k1", "v")
    with pytest.raises(InternalError):
        await store.once(PUT, "k1", "again")
    async with store.unit() as unit:
        await unit.fetch(PUT, "k2", "v")
    assert stored(path) == {"k1", "k2"}


async def test_a_statement_reads_the_lease_clock_of_its_store(store: SqliteStore) -> None:
    before = (await store.lease_clock()).now_ms
    ((now_ms,),) = await store.once(f"SELECT {store.lease_now_sql}")
    assert before <= now_ms <= (await store.lease_clock()).now_ms
    store.clock = lambda: LeaseClock(77, "boot")
    assert await store.once(f"SELECT {store.lease_now_sql}") == [(77,)]
    assert await store.lease_clock() == LeaseClock(77, "boot")
