"""The outbox's statements: who is claimed first, guards, what ended leases and used-up attempts lead to, lists."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cks_runtime.model.outbox import Claim, Dead, Done, Leased, Now, Ready, RetryPolicy
from cks_runtime.store import outbox as rows
from cks_runtime.store.outbox import TASK_TYPES, TaskRow
from cks_runtime.store.ports import LeaseClock, Store
from cks_runtime.store.sqlite import SqliteStore, open_sqlite

NOW = Now(wall_ms=1_000_000, lease_ms=500_000, boot_id="boot-5")
LEASE_MS = 60_000
POLICY = RetryPolicy(attempts_max=3)
TOKENS = (f"token-{n}" for n in itertools.count())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await open_sqlite(str(tmp_path / "cks.db"), "NORMAL")
    yield opened
    await opened.close()


async def put(
    store: Store, name: str, due_ms: int = 1, task_type: str = TASK_TYPES[0], session: str = "main"
) -> None:
    async with store.unit() as unit:
        await rows.put_task(unit, name, task_type, session, {"name": name}, f"key-{name}", due_ms)


async def claim(
    store: Store,
    *types: str,
    session: str | None = None,
    now: Now = NOW,
    length_ms: int = LEASE_MS,
    policy: RetryPolicy = POLICY,
) -> TaskRow | None:
    wanted = types or TASK_TYPES
    request = Claim("me", next(TOKENS), length_ms)
    with at(store, now):
        return await rows.claim_task(store, wanted, session, request, now.boot_id, now.wall_ms, policy)


@contextmanager
def at(store: Store, now: Now) -> Iterator[None]:
    """The lease clock stands at this time."""
    assert isinstance(store, SqliteStore)
    store.clock = lambda: LeaseClock(now.lease_ms, now.boot_id)
    yield


async def complete(store: Store, name: str, token: str) -> str | None:
    with at(store, NOW):
        return await rows.complete_task(store, name, token, NOW.boot_id)


async def names(store: Store, *types: str, session: str | None = None, now: Now = NOW) -> list[str]:
    found = []
    while task := await claim(store, *types, session=session, now=now):
        found.append(task.task_id)
    return found


async def get(store: Store, name: str) -> TaskRow | None:
    async with store.reader() as reader:
        return await rows.get_task(reader, name)


async def state(store: Store, name: str) -> Any:
    task = await get(store, name)
    assert task is not None
    return task.state


async def column(store: Store, name: str, column: str, value: object) -> None:
    async with store.unit() as unit:
        await unit.execute(f"UPDATE cks_outbox_tasks SET {column} = ? WHERE task_id = ?", value, name)


async def test_the_longest_due_comes_first_whatever_its_type(store: Store) -> None:
    for index, due_ms in enumerate([30, 10, 20, 10]):
        await put(store, f"t{index}", due_ms, TASK_TYPES[index])
    await put(store, "later", NOW.wall_ms + 1)
    await put(store, "now", NOW.wall_ms)
    assert await names(store) == ["t1", "t3", "t2", "t0", "now"]
    assert await state(store, "later") == Ready(0, NOW.wall_ms + 1)


async def test_a_claim_may_name_types_and_a_session(store: Store) -> None:
    for index, (kind, session) in enumerate(itertools.product(TASK_TYPES[:3], ["a", "b"])):
        await put(store, f"t{index}", 10 - index, kind, session)
    assert await names(store, TASK_TYPES[1], session="b") == ["t3"]
    assert await names(store, session="b") == ["t5", "t1"]
    assert await names(store, TASK_TYPES[0], TASK_TYPES[2]) == ["t4", "t0"]
    assert await names(store, TASK_TYPES[5]) == []
    assert await names(store, session="nobody's") == []
    assert await names(store) == ["t2"]


async def test_a_claim_stores_the_lease_and_answers_the_whole_task(store: Store) -> None:
    await put(store, "t")
    task = await claim(store)
    assert task is not None and task == await get(store, "t")
    assert task.payload() == {"name": "t"} and task.dedupe_key == "key-t" and task.created_at_ms == 1
    lease = task.state
    assert isinstance(lease, Leased)
    assert (lease.attempts, lease.owner, lease.boot_id) == (1, "me", "boot-5")
    assert (lease.until_ms, lease.length_ms) == (NOW.lease_ms + LEASE_MS, LEASE_MS)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("past", {"lease_until": NOW.lease_ms}),
        ("too far ahead", {"lease_until": NOW.lease_ms + LEASE_MS + 1}),
        ("an earlier boot", {"lease_boot_id": "boot-1"}),
        ("a later boot", {"lease_boot_id": "boot-9"}),
        ("no boot", {"lease_boot_id": None}),
        ("no end", {"lease_until": None, "lease_boot_id": None, "lease_ms": None}),
    ],
)
async def test_an_ended_lease_is_claimed_before_what_waits(
    store: Store, name: str, changes: dict[str, object]
) -> None:
    await put(store, "held")
    first = await claim(store)
    assert first is not None and isinstance(first.state, Leased)
    await put(store, "waits")
    for key, value in changes.items():
        await column(store, "held", key, value)
    assert await complete(store, "held", first.state.token) is None
    second = await claim(store)
    assert second is not None and second.task_id == "held"
    assert isinstance(second.state, Leased) and second.state.attempts == 2
    assert await complete(store, "held", first.state.token) is None
    assert await complete(store, "held", second.state.token) == "key-held"


async def test_running_leases_are_left_alone_by_claims_for_other_lengths(store: Store) -> None:
    await put(store, "short")
    assert await claim(store, length_ms=1000)
    await put(store, "long")
    assert await claim(store, length_ms=3_600_000)
    for length_ms in (1, 60_000, 10_000_000):
        assert await claim(store, length_ms=length_ms) is None


async def test_what_has_no_attempt_left_is_buried_and_the_claim_goes_on(store: Store) -> None:
    for name in ("killer", "spent", "quiet", "good"):
        await put(store, name, 1)
    await column(store, "killer", "attempts", 2)
    killer = await claim(store)
    assert killer is not None and killer.task_id == "killer"
    await column(store, "spent", "attempts", 3)
    await column(store, "spent", "last_error", "it burns")
    await column(store, "quiet", "attempts", 7)
    later = Now(NOW.wall_ms + 5, NOW.lease_ms + LEASE_MS, NOW.boot_id)
    good = await claim(store, now=later)
    assert good is not None and good.task_id == "good"
    assert await state(store, "killer") == Dead(
        3, "Attempt 3, by me, ended without an answer.", later.wall_ms
    )
    assert await state(store, "spent") == Dead(3, "it burns", later.wall_ms)
    assert await state(store, "quiet") == Dead(7, "Every attempt is used up.", later.wall_ms)
    assert await claim(store, now=later) is None


async def test_attempts_may_be_as_many_as_a_column_holds(store: Store) -> None:
    await put(store, "old")
    await column(store, "old", "attempts", (1 << 63) - 2)
    endless = RetryPolicy((1 << 63) - 1)
    task = await claim(store, policy=endless)
    assert task is not None and isinstance(task.state, Leased) and task.state.attempts == (1 << 63) - 1
    later = Now(NOW.wall_ms, NOW.lease_ms + LEASE_MS, NOW.boot_id)
    assert await claim(store, policy=endless, now=later) is None
    assert isinstance(await state(store, "old"), Dead)


async def test_a_swap_needs_the_state_that_was_read(store: Store) -> None:
    await put(store, "t")
    waiting = await get(store, "t")
    held = await claim(store)
    assert waiting is not None and held is not None
    async with store.unit() as unit:
        assert not await rows.swap_state(unit, waiting, Dead(0, "no", 5))
        assert not await rows.swap_state(unit, waiting, Done())
        assert await rows.swap_state(unit, held, Ready(1, 77, "no"))
    assert await state(store, "t") == Ready(1, 77, "no")
    async with store.unit() as unit:
        assert await rows.swap_state(unit, waiting_after := await _need(store, "t"), Dead(1, "no", 5))
        assert not await rows.swap_state(unit, waiting_after, Done())
    assert await state(store, "t") == Dead(1, "no", 5)


async def _need(store: Store, name: str) -> TaskRow:
    task = await get(store, name)
    assert task is not None
    return task


async def test_the_last_holder_of_what_left_the_queue_is_remembered(store: Store) -> None:
    for name in ("done", "moot", "waits"):
        await put(store, name)
    done, moot = await claim(store), await claim(store)
    assert done is not None and isinstance(done.state, Leased)
    assert moot is not None and isinstance(moot.state, Leased)
    assert await complete(store, "done", done.state.token) == "key-done"
    async with store.unit() as unit:
        await rows.remove_tasks(unit, ["key-moot", "key-waits"])
    async with store.reader() as reader:
        assert await rows.get_settled(reader, "done") == Done(done.state.token)
        assert await rows.get_settled(reader, "moot") == Done(moot.state.token)
        assert await rows.get_settled(reader, "waits") == Done("")
        assert await rows.get_settled(reader, "never was") is None
        assert await reader.fetch("SELECT count(*) FROM cks_outbox_tasks") == [(0,)]


async def test_only_the_last_100_000_are_remembered(store: Store) -> None:
    async with store.unit() as unit:
        await unit.execute_many(
            "INSERT INTO outbox_settled (task_id, claim_token) VALUES (?, 't')",
            ((f"o{n}",) for n in range(100_000)),
        )
    for name in ("a", "b"):
        await put(store, name)
    async with store.unit() as unit:
        await rows.remove_tasks(unit, ["key-a", "key-b"])
    async with store.reader() as reader:
        assert await reader.fetch("SELECT count(*), min(settled_no) FROM outbox_settled") == [(100_000, 3)]


async def test_a_task_is_raised_once_a_key_and_a_dead_one_lives_again(store: Store) -> None:
    async def again() -> None:
        async with store.unit() as unit:
            await rows.put_task(unit, "other", TASK_TYPES[0], "main", {"name": "newer"}, "key-t", 500)

    await put(store, "t")
    held = await claim(store)
    await again()
    task = await _need(store, "t")
    assert held is not None and task.state == held.state and task.payload() == {"name": "newer"}
    async with store.unit() as unit:
        await rows.swap_state(unit, task, Dead(3, "no", 5))
    await again()
    assert await state(store, "t") == Ready(0, 500, "no")
    assert await get(store, "other") is None


async def test_lists_are_paged_by_age(store: Store) -> None:
    for index in range(23):
        await put(store, f"t{index:02}", 1 + index // 4, TASK_TYPES[index % 2], "ab"[index % 3 == 0])
        async with store.unit() as unit:
            await rows.swap_state(unit, await _need(store, f"t{index:02}"), Dead(1, "no", 100 - index))
    await put(store, "waits")

    async def walk(task_type: str | None, session: str | None, limit: int) -> list[str]:
        found: list[str] = []
        after: tuple[int, str] | None = None
        async with store.reader() as reader:
            while page := await rows.page_tasks(reader, "DEAD", task_type, session, after, limit):
                assert len(page) <= limit
                found += [task.task_id for task in page]
                after = page[-1].created_at_ms, page[-1].task_id
        return found

    everything = [f"t{index:02}" for index in range(23)]
    for limit in (1, 4, 5, 500):
        assert await walk(None, None, limit) == everything
        assert await walk(TASK_TYPES[1], None, limit) == everything[1::2]
        assert await walk(None, "b", limit) == everything[::3]
        assert await walk(TASK_TYPES[0], "b", limit) == everything[::6]
    async with store.reader() as reader:
        assert [task.task_id for task in await rows.page_tasks(reader, "PENDING", None, None, None, 9)] == [
            "waits"
        ]


async def test_depths_count_by_type_and_status(store: Store) -> None:
    for index in range(6):
        await put(store, f"t{index}", 10 + index, TASK_TYPES[index % 2])
    assert await claim(store)
    async with store.unit() as unit:
        await rows.swap_state(unit, await _need(store, "t5"), Dead(1, "no", 5))
    async with store.reader() as reader:
        assert await rows.queue_depths(reader) == [
            (TASK_TYPES[0], "IN_PROGRESS", 1, 10),
            (TASK_TYPES[0], "PENDING", 2, 12),
            (TASK_TYPES[1], "DEAD", 1, 15),
            (TASK_TYPES[1], "PENDING", 2, 11),
        ]


async def test_a_payload_that_is_no_object_does_not_stop_the_queue(store: Store) -> None:
    for name, text in (("broken", "{"), ("list", "[1]")):
        await put(store, name)
        await column(store, name, "payload", text)
        task = await claim(store)
        assert task is not None and task.payload() == {"unreadable": text}


@pytest.mark.parametrize("by_session", [False, True])
async def test_every_part_of_a_claim_seeks_in_an_index(store: Store, by_session: bool) -> None:
    claim, bury = rows._claim_sql(store.lease_now_sql, len(TASK_TYPES), by_session)
    pick = rows._pick_params(TASK_TYPES, "main" if by_session else None, LEASE_MS, NOW.boot_id, NOW.wall_ms)
    async with store.unit() as unit:
        plan = await unit.fetch(f"EXPLAIN QUERY PLAN {claim}", *[None] * 5, *pick, 3)
        assert await unit.fetch(f"EXPLAIN QUERY PLAN {bury}", 1, "no", *pick, 3)
    lines = [str(row[3]) for row in plan]
    assert lines.pop(0).startswith("SEARCH cks_outbox_tasks USING INDEX sqlite_autoindex")
    reads = [line for line in lines if "cks_outbox_tasks" in line]
    assert len(reads) == len(TASK_TYPES) + 5
    assert all(line.startswith("SEARCH cks_outbox_tasks USING INDEX outbox_") for line in reads)


async def test_dead_lists_and_depths_read_indexes(store: Store) -> None:
    async with store.reader() as reader:
        for where in ("", " AND task_type = 'x'", " AND session_id = 'x'"):
            plan = await reader.fetch(
                "EXPLAIN QUERY PLAN SELECT * FROM cks_outbox_tasks WHERE status = 'DEAD'"
                f"{where} ORDER BY created_at, task_id LIMIT 50"
            )
            assert ["outbox_dead" in str(row[3]) for row in plan] == [True], plan
