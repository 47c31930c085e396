"""What every body of the store promises about transactions, readers and cancellation."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from cancelling import HOWS, How, cancelled_at

from cks_runtime.model.errors import CksError, InternalError
from cks_runtime.store.meta import get_meta, set_meta, set_meta_once
from cks_runtime.store.open import open_store
from cks_runtime.store.ports import Reader, Store, Unit


async def read(store: Store, key: str) -> str | None:
    async with store.reader() as reader:
        return await get_meta(reader, key)


async def keys(reader: Reader, like: str) -> list[str]:
    rows = await reader.fetch("SELECT key FROM meta WHERE key LIKE ? ORDER BY key", like)
    return [str(row[0]) for row in rows]


async def write(store: Store, *names: str) -> None:
    async with store.unit() as unit:
        await put(unit, names)


async def put(unit: Unit, names: Sequence[str]) -> None:
    for name in names:
        await set_meta(unit, name, "stands")


async def test_a_unit_commits_when_its_block_ends(store: Store) -> None:
    async with store.unit() as unit:
        await set_meta(unit, "a", "1")
        assert await get_meta(unit, "a") == "1", "a unit sees its own writes"
    assert await read(store, "a") == "1"


async def test_an_exception_rolls_everything_back(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        async with store.unit() as unit:
            await put(unit, ["a", "b"])
            raise ZeroDivisionError
    assert await read(store, "a") is None
    await write(store, "a")
    assert await read(store, "a") == "stands"


async def test_a_refused_statement_rolls_everything_back(store: Store) -> None:
    with pytest.raises(CksError):
        async with store.unit() as unit:
            await set_meta(unit, "a", "1")
            await unit.execute("INSERT INTO meta (key, value) VALUES ('b', NULL)")
    assert await read(store, "a") is None
    await write(store, "a")


async def test_a_statement_the_database_refuses_is_an_internal_error(store: Store) -> None:
    async with store.reader() as reader:
        with pytest.raises(InternalError, match="nowhere"):
            await reader.fetch("SELECT * FROM nowhere")
        assert await get_meta(reader, "a") is None, "the reader still reads"


async def test_a_reader_sees_only_what_was_committed(store: Store) -> None:
    async with anyio.create_task_group() as tasks:
        written, read_it = anyio.Event(), anyio.Event()

        async def look() -> None:
            await written.wait()
            seen = await read(store, "a")
            assert seen == (None if store.location != ":memory:" else "1")
            read_it.set()

        tasks.start_soon(look)
        async with store.unit() as unit:
            await set_meta(unit, "a", "1")
            written.set()
            if store.location != ":memory:":  # the one connection in memory lets a reader wait for the end
                await read_it.wait()
    assert await read(store, "a") == "1"


@pytest.mark.parametrize("body", ["file"])  # in memory reader and writer share the one connection
async def test_a_reader_cannot_write(store: Store) -> None:
    async with store.reader() as reader:
        with pytest.raises(CksError):
            await reader.fetch("INSERT INTO meta (key, value) VALUES ('a', '1') RETURNING key")


async def test_writers_of_one_process_take_turns(store: Store) -> None:
    async def add() -> None:
        async with store.unit() as unit:
            count = int(await get_meta(unit, "count") or 0)
            await anyio.lowlevel.checkpoint()
            await set_meta(unit, "count", str(count + 1))

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            tasks.start_soon(add)
    assert await read(store, "count") == "30"


async def test_more_readers_than_connections_all_get_their_turn(store: Store) -> None:
    await write(store, "a")
    seen: list[str | None] = []

    async def look() -> None:
        seen.append(await read(store, "a"))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(look)
    assert seen == ["stands"] * 20


async def test_one_statement_for_many_rows(store: Store) -> None:
    async with store.unit() as unit:
        await unit.execute_many("INSERT INTO meta (key, value) VALUES (?, ?)", [])
        await unit.execute_many(
            "INSERT INTO meta (key, value) VALUES (?, ?)", ((f"k{n}", "x") for n in range(1000))
        )
        assert len(await keys(unit, "k%")) == 1000


async def test_a_guarded_statement_is_a_transaction_of_its_own(store: Store) -> None:
    sql = "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING RETURNING key"
    assert [tuple(row) for row in await store.once(sql, "a", "1")] == [("a",)]
    assert await store.once(sql, "a", "2") == []
    assert await read(store, "a") == "1"
    with pytest.raises(CksError):
        await store.once("INSERT INTO meta (key, value) VALUES ('b', NULL)")
    await write(store, "b")


async def test_a_value_that_is_set_once_stays(store: Store) -> None:
    async with store.unit() as unit:
        assert await set_meta_once(unit, "a", "first") == "first"
        assert await set_meta_once(unit, "a", "second") == "first"


@pytest.mark.parametrize("how", HOWS)
async def test_a_write_that_is_cancelled_at_any_await_leaves_all_or_nothing(store: Store, how: How) -> None:
    at = 0
    suspended = True
    while suspended:
        at += 1
        pair = [f"{at}-a", f"{at}-b"]
        suspended = await cancelled_at(at, write(store, *pair), how)
        async with store.reader() as reader:
            assert await keys(reader, f"{at}-%") in ([], pair)
        await write(store, f"after-{at}")  # no transaction stayed open
    assert at > 4, "the write awaits at least its begin, two statements and its commit"
    async with store.reader() as reader:
        assert len(await keys(reader, "after-%")) == at
        assert await keys(reader, f"{at}-%") == [f"{at}-a", f"{at}-b"], "the last one was not cancelled"


@pytest.mark.parametrize("how", HOWS)
async def test_a_read_that_is_cancelled_at_any_await_gives_its_connection_back(
    store: Store, how: How
) -> None:
    await write(store, "a")
    at = 0
    suspended = True
    while suspended:
        at += 1
        suspended = await cancelled_at(at, read(store, "a"), how)
        assert await read(store, "a") == "stands"


async def test_a_closed_store_closes_again(location: str) -> None:
    opened = await open_store(location)
    async with opened.reader() as reader:
        assert await get_meta(reader, "a") is None
    await opened.close()
    await opened.close()


async def test_a_reader_in_use_is_closed_when_it_is_given_back(location: str) -> None:
    opened = await open_store(location)
    async with opened.reader():
        await opened.close()
    with pytest.raises(AssertionError, match="closed"):
        async with opened.reader():
            pass


async def test_the_store_tells_its_size_and_health(store: Store) -> None:
    await write(store, "a")
    sizes = await store.sizes()
    assert sizes["total"] >= sizes["meta"] > 0
    assert await store.check() == []


async def test_the_lease_clock_runs_on_and_names_its_boot(store: Store) -> None:
    first, second = await store.lease_clock(), await store.lease_clock()
    assert first.now_ms <= second.now_ms
    assert first.boot_id == second.boot_id != ""
