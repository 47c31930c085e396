"""The runtime as a whole: who it is, what it trusts, how its services end, and what it refuses to start with."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import anyio
import pytest
from conftest import FakeClock, OpenRuntime
from making import evolve, ids_of, patch, prove, thing

from cks_runtime.model.errors import InvalidKnowledge, StoreUnusable
from cks_runtime.model.records import verify
from cks_runtime.runtime import Runtime


async def test_a_database_keeps_its_identity(open_rt: OpenRuntime, tmp_path: Path) -> None:
    async with open_rt() as one, open_rt() as two:
        assert one.replica_id == two.replica_id and one.keys == two.keys
        assert one.instance_id != two.instance_id
        first = one.replica_id
    async with open_rt() as again, open_rt(db_path=str(tmp_path / "other.db")) as other:
        assert again.replica_id == first and len(first) == 16
        assert other.replica_id != first and other.keys != again.keys


async def test_what_the_own_key_signed_outlives_another_secret(
    open_rt: OpenRuntime, clock: FakeClock
) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", thing("a"))
        await prove(rt, "s", "a", "own", clock())
    secret = b"a secret that replicas share, 32 bytes"
    async with open_rt(record_secret=secret) as rt:
        await prove(rt, "s", "a", "shared", clock())
        await evolve(rt, "s", patch("own", superseded_by="shared"))
        _, graph = await rt.sessions.head("s")
        assert verify(graph["own"], rt.keys) and verify(graph["shared"], rt.keys)
        assert graph["own"].structure["key_id"] != graph["shared"].structure["key_id"] == rt.keys.primary_id
    async with open_rt() as rt:
        await prove(rt, "s", "a", "third", clock())
        with pytest.raises(InvalidKnowledge, match="unknown key"):
            await evolve(rt, "s", patch("shared", superseded_by="third"))


async def test_replicas_of_one_secret_trust_each_others_records(
    open_rt: OpenRuntime, clock: FakeClock, tmp_path: Path
) -> None:
    secret = b"a secret that replicas share, 32 bytes"
    here = open_rt(record_secret=secret)
    there = open_rt(record_secret=secret, db_path=str(tmp_path / "other.db"))
    async with here as one, there as two:
        await evolve(one, "s", thing("a"))
        await prove(one, "s", "a", "proof", clock())
        _, graph = await one.sessions.head("s")
        moved = await two.commits.put("s", graph.objects(), create=True)
        assert moved.after == graph


async def test_a_damaged_identity_is_refused_and_named(open_rt: OpenRuntime, tmp_path: Path) -> None:
    async with open_rt() as rt:
        await evolve(rt, "s", thing("a"))
    conn = sqlite3.connect(tmp_path / "cks.db")
    with conn:
        conn.execute("UPDATE meta SET value = 'no hex' WHERE key = 'record_secret'")
    conn.close()
    with pytest.raises(StoreUnusable, match="record secret") as caught:
        async with open_rt():
            pytest.fail("it started")
    assert str(tmp_path / "cks.db") in caught.value.message


async def test_an_error_inside_the_block_comes_out_as_itself(open_rt: OpenRuntime) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_rt() as rt:
            await evolve(rt, "s", thing("a"))
            raise ZeroDivisionError
    async with open_rt() as rt:
        assert await ids_of(rt, "s") == ["a"]


async def test_an_error_in_a_service_ends_the_runtime_and_is_raised(open_rt: OpenRuntime) -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with open_rt() as rt:
            rt.run([fails])
            await anyio.sleep_forever()


async def test_services_end_with_the_block(open_rt: OpenRuntime) -> None:
    ended: list[str] = []

    async def service() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("service")

    async with open_rt() as rt:
        rt.run([service, service])
        await anyio.wait_all_tasks_blocked()
        assert ended == []
    assert ended == ["service"] * 2


async def test_leaving_while_calls_run_loses_nothing_acknowledged(open_rt: OpenRuntime) -> None:
    acknowledged: list[str] = []

    async def write(rt: Runtime, name: str) -> None:
        for number in range(1000):
            await evolve(rt, "s", thing(f"{name}{number}"))
            acknowledged.append(f"{name}{number}")

    async with open_rt() as rt:
        enough = anyio.Event()

        async def watch() -> None:
            async with rt.bus.subscribe() as events:
                for _ in range(20):
                    await events.receive()
                enough.set()

        rt.run([watch, *(lambda name=name: write(rt, name) for name in "abc")])
        await enough.wait()
    async with open_rt() as rt:
        stands = await ids_of(rt, "s")
        assert set(acknowledged) <= set(stands) and len(acknowledged) >= 15
        assert len(stands) <= len(acknowledged) + 3


async def test_in_memory_everything_but_the_outbox_works(open_rt: OpenRuntime) -> None:
    async with open_rt(db_path=":memory:") as rt, open_rt(db_path=":memory:") as other:
        await evolve(rt, "s", thing("a"))
        row = await rt.branches.create("s")
        await evolve(rt, row.session_id, thing("b"))
        await rt.branches.merge("s", row.session_id)
        assert await ids_of(rt, "s") == ["a", "b"] and not rt.store.has_outbox
        assert not await other.sessions.exists("s"), "each is a database of its own"
        async with rt.bus.subscribe() as events:
            await evolve(rt, "s", thing("c"))
            assert (await events.receive()).kind == "HeadMoved"


async def test_many_sessions_and_readers_at_once(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:

        async def live(name: str) -> None:
            for number in range(5):
                await evolve(rt, name, thing(f"o{number}"))
                await rt.sessions.head(name)
                await rt.search.find(name, f"o{number}", 5)
                await rt.sessions.history([(await rt.sessions.get(name)).head], 5)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for number in range(12):
                    tasks.start_soon(live, f"s{number}")
        for number in range(12):
            assert len(await ids_of(rt, f"s{number}")) == 5
