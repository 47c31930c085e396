"""The inference sweeper: what moves its marks, whose conflict it is, and what an idle sweep costs."""

from __future__ import annotations

from dataclasses import replace

import aiosqlite
import anyio
from conftest import OpenRuntime
from making import branch, evolve, merged, patch, remove, step, thing

from cks_runtime.config import RuntimeConfig
from cks_runtime.runtime import Runtime
from cks_runtime.store.conflicts import RecordRow
from cks_runtime.store.ports import Store
from cks_runtime.store.sessions import insert_session
from cks_runtime.store.sqlite import SqliteStore, open_sqlite
from sweepers import InferenceStalenessSweeper, SweepReport


def sweeper(rt: Runtime) -> InferenceStalenessSweeper:
    return InferenceStalenessSweeper(rt, 300)


async def disagreeing(rt: Runtime, session_id: str = "s") -> None:
    await evolve(rt, session_id, thing("c"), step("i", "c", confidence=0.9), step("j", "c", confidence=0.4))


async def open_records(rt: Runtime) -> list[RecordRow]:
    return await rt.conflicts.page("inference", "open", limit=500)


async def test_a_sweep_looks_at_what_moved_and_only_once(rt: Runtime) -> None:
    assert (await sweeper(rt).sweep()).sessions == 0
    await disagreeing(rt)
    await evolve(rt, "t", thing("a"))
    first = await sweeper(rt).sweep()
    assert (first.sessions, first.raised) == (2, 1)
    assert (await sweeper(rt).sweep()).sessions == 0
    await evolve(rt, "t", thing("b"))
    again = await sweeper(rt).sweep()
    assert (again.sessions, again.raised) == (1, 0)


async def test_the_cursor_survives_a_restart(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await disagreeing(rt)
        await sweeper(rt).sweep()
    async with open_rt() as rt:
        assert (await sweeper(rt).sweep()).sessions == 0
        await evolve(rt, "s", patch("c", x=1))
    async with open_rt() as rt:
        report = await sweeper(rt).sweep()
        assert (report.sessions, report.raised) == (1, 0)


async def test_what_another_process_commits_is_swept(open_rt: OpenRuntime) -> None:
    async with open_rt() as one, open_rt() as two:
        await disagreeing(two)
        assert (await sweeper(one).sweep()).raised == 1
        assert (await sweeper(two).sweep()).sessions == 0


async def test_two_sweepers_at_once_raise_once(open_rt: OpenRuntime) -> None:
    async with open_rt() as one, open_rt() as two:
        for number in range(10):
            await disagreeing(one, f"s{number}")
        reports: list[SweepReport] = []

        async def sweep(rt: Runtime) -> None:
            reports.append(await sweeper(rt).sweep())

        async with anyio.create_task_group() as tasks:
            for rt in (one, two, one):
                tasks.start_soon(sweep, rt)
        assert sum(report.raised for report in reports) == 10 == len(await open_records(one))


async def test_a_closed_session_keeps_its_conflicts(rt: Runtime) -> None:
    await disagreeing(rt)
    await rt.branches.close("s")
    assert (await sweeper(rt).sweep()).raised == 1
    await rt.branches.close("s", reopen=True)
    await evolve(rt, "s", remove("j"))
    await sweeper(rt).sweep()
    assert await open_records(rt) == []


async def test_a_branch_raises_only_what_differs_from_its_fork_point(rt: Runtime) -> None:
    await disagreeing(rt)
    await evolve(rt, "s", thing("d"), step("k", "d", confidence=0.5))
    await sweeper(rt).sweep()
    other = await branch(rt)
    assert (await sweeper(rt).sweep()).raised == 0
    await evolve(rt, other, patch("i", justification="touched, and as it was"))
    assert (await sweeper(rt).sweep()).raised == 0
    await evolve(rt, other, step("l", "d", confidence=0.1))
    assert (await sweeper(rt).sweep()).raised == 1
    assert [record.session_id for record in await open_records(rt)] == ["s", other]
    await evolve(rt, other, patch("j", confidence=0.3))
    assert (await sweeper(rt).sweep()).raised == 1, "another disagreement than its parent's"
    await merged(rt, "s", other)
    await sweeper(rt).sweep()
    here = [record for record in await open_records(rt) if record.session_id == "s"]
    assert sorted(d["conclusion_id"] for record in here for d in record.body["diagnostics"]) == ["c", "d"]


async def test_a_branch_that_settles_its_parents_conflict_leaves_the_parent_open(rt: Runtime) -> None:
    await disagreeing(rt)
    await sweeper(rt).sweep()
    other = await branch(rt)
    await evolve(rt, other, remove("j"))
    await sweeper(rt).sweep()
    assert [record.session_id for record in await open_records(rt)] == ["s"]
    await merged(rt, "s", other)
    await sweeper(rt).sweep()
    assert await open_records(rt) == []


async def test_a_damaged_session_does_not_hold_up_the_others(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await disagreeing(rt, "a-bad")
        await disagreeing(rt, "good")
        root = (await rt.sessions.get("a-bad")).root
        async with rt.store.unit() as unit:
            await unit.execute("UPDATE blobs SET data = x'00' WHERE hash = ?", root)
    async with open_rt() as rt:
        assert (await sweeper(rt).sweep()).raised == 0, "equal content is one blob, so both are damaged"
        await evolve(
            rt, "fine", thing("c", x=1), step("i", "c", confidence=0.9), step("j", "c", confidence=0.4)
        )
        assert (await sweeper(rt).sweep()).raised == 1


async def test_a_damaged_object_is_passed_over_and_closes_nothing(open_rt: OpenRuntime) -> None:
    async with open_rt() as rt:
        await disagreeing(rt)
        await sweeper(rt).sweep()
        await evolve(rt, "s", patch("i", justification="new"), thing("d"), step("k", "d", confidence=0.1))
        _, graph = await rt.sessions.head("s")
        async with rt.store.unit() as unit:
            await unit.execute("UPDATE blobs SET data = x'00' WHERE hash = ?", graph["i"].hash)
    async with open_rt() as rt:
        await evolve(rt, "s", step("l", "d", confidence=0.9))
        await sweeper(rt).sweep()
        found = [d["conclusion_id"] for record in await open_records(rt) for d in record.body["diagnostics"]]
        assert sorted(found) == ["c", "d"]


# ---- cost


class CountingStore(SqliteStore):
    """Counts the statements of every connection, but for those of the journal's tail."""

    counted = 0

    async def _open(self, read_only: bool) -> aiosqlite.Connection:
        conn = await super()._open(read_only)
        await conn.set_trace_callback(self._count)
        return conn

    def _count(self, sql: str) -> None:
        self.counted += "FROM journal" not in sql


async def counting(config: RuntimeConfig) -> Store:
    prepared = await open_sqlite(config.db_path, config.sqlite_synchronous)
    await prepared.close()
    store = CountingStore(prepared.location, config.sqlite_synchronous)
    await store.connect()
    return store


async def statements(rt: Runtime) -> int:
    assert isinstance(rt.store, CountingStore)
    before = rt.store.counted
    await sweeper(rt).sweep()
    return rt.store.counted - before


async def test_an_idle_sweep_costs_the_same_with_a_thousand_sessions(open_rt: OpenRuntime) -> None:
    async with open_rt(opener=counting) as rt:
        await disagreeing(rt)
        await sweeper(rt).sweep()
        idle = await statements(rt)
        await evolve(rt, "s", patch("c", x=1))
        busy = await statements(rt)
        await _add_sessions(rt, 1000)
        assert await statements(rt) == idle <= 3
        await evolve(rt, "s", patch("c", x=2))
        assert await statements(rt) == busy


async def _add_sessions(rt: Runtime, count: int) -> None:
    """Sessions that were swept long ago: their heads moved before the cursor."""
    row = await rt.sessions.get("s")
    async with rt.store.unit() as unit:
        for number in range(count):
            await insert_session(unit, replace(row, session_id=f"old-{number}", moved_seq=0))
