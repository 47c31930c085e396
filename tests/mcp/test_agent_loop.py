"""The loop of workers: settling, heartbeats, lost leases, stopping, and a database that is out of order for a while."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog

from cks_mcp.agents.loop import Completed, DeadLettered, Failed, Released, Settlement, Worker
from cks_mcp.agents.program import parse_once
from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.outbox import Held
from cks_runtime.model.errors import NotSupported, ObjectNotFound, StoreFull
from cks_runtime.model.events import InferenceConflictDetected
from cks_runtime.model.outbox import Dead, Leased, Ready
from cks_runtime.runtime import Runtime
from cks_runtime.store import outbox as rows
from cks_runtime.store.outbox import TASK_TYPES

PROGRAM = """
import sys, contextlib, anyio
from cks_mcp.agents.loop import Completed, Worker
from cks_mcp.agents.program import parse_once, run_worker
from cks_runtime.config import RuntimeConfig
from cks_runtime.runtime import Runtime

async def work(held):
    print("working", held.task_id, flush=True)
    await anyio.sleep(float(held.payload["seconds"]))
    return Completed()

@contextlib.asynccontextmanager
async def open_worker():
    async with Runtime.open(RuntimeConfig(db_path=path, sqlite_synchronous="NORMAL")) as rt:
        print("open", flush=True)
        yield Worker(rt, work, name="test-agent", poll_interval_s=0.1)

path = sys.argv.pop(1)
once = parse_once("test-agent", "Works in tests.")
run_worker(open_worker, once=once)
print("closed", flush=True)
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "cks.db")


@pytest.fixture
async def rt(path: str) -> AsyncIterator[Runtime]:
    config = RuntimeConfig(db_path=path, sqlite_synchronous="NORMAL", outbox_lease_s=30)
    async with Runtime.open(config) as opened:
        yield opened


async def put(rt: Runtime, *names: str, seconds: float = 0, task_type: str = TASK_TYPES[0]) -> None:
    async with rt.store.unit() as unit:
        for name in names:
            await rows.put_task(unit, name, task_type, "main", {"seconds": seconds}, f"key-{name}", 1)


async def state(rt: Runtime, name: str) -> object:
    async with rt.store.reader() as reader:
        task = await rows.get_task(reader, name)
    return None if task is None else task.state


def worker(rt: Runtime, work: Callable[[Held], Awaitable[Settlement]], **options: Any) -> Worker:
    return Worker(rt, work, name="test", **{"poll_interval_s": 0.05, **options})


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await anyio.sleep(0.02)
    raise AssertionError("it did not come to that within ten seconds")


async def test_each_way_to_settle(rt: Runtime) -> None:
    await put(rt, "done", "failed", "dead", "known", "bug")

    async def work(held: Held) -> Settlement:
        match held.task_id:
            case "done":
                return Completed()
            case "failed":
                return Failed("try later")
            case "dead":
                return DeadLettered("give up")
            case "known":
                raise ObjectNotFound("there is no object 'x'")
            case _:
                raise ZeroDivisionError("oh")

    made = worker(rt, work)
    await made.run(once=True)
    assert await state(rt, "done") is None
    failed, dead, known, bug = [await state(rt, name) for name in ("failed", "dead", "known", "bug")]
    assert isinstance(failed, Ready) and failed.error == "try later" and failed.attempts == 1
    assert isinstance(dead, Dead) and dead.error == "give up"
    assert isinstance(known, Ready) and known.error == "object_not_found: there is no object 'x'"
    assert isinstance(bug, Ready) and bug.error == "ZeroDivisionError: oh"
    assert (made.tally.completed, made.tally.failed, made.tally.dead_lettered) == (1, 3, 1)


async def test_once_ends_when_nothing_is_due_and_only_its_types_are_claimed(rt: Runtime) -> None:
    await put(rt, "mine", task_type=TASK_TYPES[1])
    await put(rt, "other", task_type=TASK_TYPES[2])

    async def work(held: Held) -> Settlement:
        return Completed()

    with anyio.fail_after(5):
        await worker(rt, work, task_types=[TASK_TYPES[1]]).run(once=True)
    assert await state(rt, "mine") is None and isinstance(await state(rt, "other"), Ready)


async def test_the_lease_is_renewed_while_the_work_goes_on(rt: Runtime) -> None:
    await put(rt, "long")
    thefts = []

    async def work(held: Held) -> Settlement:
        for _ in range(15):
            await anyio.sleep(0.1)
            thefts.append(await rt.outbox.claim("thief"))
        return Completed()

    made = worker(rt, work, lease_s=0.6)
    await made.run(once=True)
    assert thefts == [None] * 15 and made.tally.completed == 1 and made.tally.lost == 0


async def test_a_lost_lease_cancels_the_work_and_drops_its_result(rt: Runtime) -> None:
    await put(rt, "t")
    ended = []

    async def work(held: Held) -> Settlement:
        async with rt.store.unit() as unit:
            await unit.execute("UPDATE cks_outbox_tasks SET claim_token = 'thief', claimed_by = 'thief'")
        try:
            await anyio.sleep(10)
        finally:
            ended.append(held.task_id)
        return Completed()

    made = worker(rt, work, lease_s=0.3)
    with anyio.fail_after(5):
        await made.run(once=True)
    assert ended == ["t"] and made.tally.lost == 1 and made.tally.completed == 0
    held = await state(rt, "t")
    assert isinstance(held, Leased) and held.token == "thief"


async def test_a_result_that_comes_too_late_is_dropped(rt: Runtime) -> None:
    await put(rt, "t")

    async def work(held: Held) -> Settlement:
        async with rt.store.unit() as unit:
            await unit.execute("UPDATE cks_outbox_tasks SET lease_until = 1")
        assert await rt.outbox.claim("thief") is not None
        return Completed()

    made = worker(rt, work)
    await made.run(once=True)
    assert made.tally.lost == 1
    held = await state(rt, "t")
    assert isinstance(held, Leased) and held.owner == "thief" and held.attempts == 2


async def test_a_task_that_became_moot_meanwhile_is_completed(rt: Runtime) -> None:
    await put(rt, "t")

    async def work(held: Held) -> Settlement:
        async with rt.store.unit() as unit:
            await rows.remove_tasks(unit, ["key-t"])
        return Completed()

    made = worker(rt, work)
    await made.run(once=True)
    assert made.tally.completed == 1 and made.tally.lost == 0


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_stopping_gives_the_task_back_with_its_attempt(rt: Runtime, how: str) -> None:
    await put(rt, "t")
    begun = anyio.Event()

    async def work(held: Held) -> Settlement:
        begun.set()
        await anyio.sleep(60)
        return Completed()

    made = worker(rt, work)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.run)
            await begun.wait()
            assert made.current is not None
            if how == "stop":
                made.stop()
            else:
                tasks.cancel_scope.cancel()
    assert made.tally.released == 1 and made.current is None
    again = await rt.outbox.claim("me")
    assert again is not None and again.task_id == "t" and again.attempts == 1


async def test_stopping_an_idle_worker_ends_it_at_once(rt: Runtime) -> None:
    async def work(held: Held) -> Settlement:
        raise AssertionError

    made = worker(rt, work, poll_interval_s=60)
    with anyio.fail_after(2):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.run)
            await anyio.sleep(0.1)
            made.stop()


async def test_a_new_conflict_wakes_a_worker_before_its_next_poll(rt: Runtime) -> None:
    done = anyio.Event()

    async def work(held: Held) -> Settlement:
        done.set()
        return Completed()

    made = worker(rt, work, poll_interval_s=60)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.run)
            await anyio.sleep(0.2)
            await put(rt, "t")
            rt.bus.publish(InferenceConflictDetected(record_id="key-t"))
            await done.wait()
            made.stop()


async def test_a_worker_without_its_means_releases_and_pauses(rt: Runtime) -> None:
    await put(rt, "a", "b")
    seen = []

    async def work(held: Held) -> Settlement:
        seen.append((held.task_id, held.attempts))
        return Released(0.4) if len(seen) < 3 else Completed()

    await worker(rt, work).run(once=True)
    assert seen == [("a", 1)], "a single run ends when the means are missing"
    made = worker(rt, work)
    began = time.monotonic()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        await until(lambda: made.tally.completed == 2)
        made.stop()
    assert time.monotonic() - began >= 0.4
    assert all(attempts == 1 for _, attempts in seen) and made.tally.released == 1


async def test_a_full_disk_ends_no_worker(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(rt, "t")
    broken = {"claim": 2, "complete": 1}
    monkeypatch.setattr("cks_mcp.agents.loop.PAUSE_S", 0.05)

    def sometimes(name: str) -> None:
        real = getattr(rt.outbox, name)

        async def call(*args: Any, **options: Any) -> Any:
            if broken[name]:
                broken[name] -= 1
                raise StoreFull("The disk is full.")
            return await real(*args, **options)

        monkeypatch.setattr(rt.outbox, name, call)

    for name in broken:
        sometimes(name)

    async def work(held: Held) -> Settlement:
        return Completed()

    made = worker(rt, work)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.run)
            await until(lambda: made.tally.completed == 1)
            made.stop()
    assert broken == {"claim": 0, "complete": 0} and await state(rt, "t") is None


async def test_a_store_without_an_outbox_is_refused() -> None:
    async def work(held: Held) -> Settlement:
        raise AssertionError

    async with Runtime.open(RuntimeConfig(db_path=":memory:")) as rt:
        with pytest.raises(NotSupported):
            await worker(rt, work).run()


def program(path: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, path, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


async def test_a_program_works_off_what_is_due_and_exits(rt: Runtime, path: str) -> None:
    await put(rt, "a", "b")
    process = program(path, "--once")
    out, _ = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=20))
    lines = [line for line in out.splitlines() if line.split()[0] in ("open", "working", "closed")]
    assert lines == ["open", "working a", "working b", "closed"] and process.returncode == 0
    assert await state(rt, "a") is None and await state(rt, "b") is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_program_cleanly_and_releases_its_lease(
    rt: Runtime, path: str, number: signal.Signals
) -> None:
    await put(rt, "long", seconds=60)
    process = program(path)
    assert process.stdout is not None
    line = ""
    while line != "working long":
        line = (await anyio.to_thread.run_sync(process.stdout.readline)).strip()
    began = time.monotonic()
    os.kill(process.pid, number)
    out, _ = await anyio.to_thread.run_sync(lambda: process.communicate(timeout=20))
    assert time.monotonic() - began < 5 and process.returncode == 0 and "closed" in out.splitlines()
    again = await rt.outbox.claim("me")
    assert again is not None and again.attempts == 1


def test_a_program_tells_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_once("test-agent", "Works in tests.", ["--once"])
    assert not parse_once("test-agent", "Works in tests.", [])
    for argument, code, text in (
        ("--help", 0, "--once"),
        ("--version", 0, "test-agent "),
        ("--no", 2, "--no"),
    ):
        with pytest.raises(SystemExit) as ended:
            parse_once("test-agent", "Works in tests.", [argument])
        printed = capsys.readouterr()
        assert ended.value.code == code and text in printed.out + printed.err
