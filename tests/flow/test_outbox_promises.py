"""Promises 1 to 5 and 12 about the outbox at fast size; `tests/soak` has the long run of the first."""

from __future__ import annotations

import os
import random
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from outbox_building import DAY_MS, Clocks, code, put, runtime, status

from cks_runtime.model.outbox import Dead, Ready
from cks_runtime.store.outbox import TASK_TYPES

SOAK = Path(__file__).parent.parent / "soak" / "outbox_kill.py"
HOLDER = """
import sys, anyio
from cks_runtime.config import RuntimeConfig
from cks_runtime.model.errors import CksError
from cks_runtime.runtime import Runtime

async def say(call):
    try:
        await call
        print("ok", flush=True)
    except CksError as error:
        print(error.code, flush=True)

async def main(path, lease_s):
    async with Runtime.open(RuntimeConfig(db_path=path, outbox_lease_s=float(lease_s))) as rt:
        held = await rt.outbox.claim("holder")
        print(held and held.task_id, flush=True)
        for line in sys.stdin:
            name, token = held.task_id, held.token
            await say({
                "renew": lambda: rt.outbox.renew(name, token),
                "complete": lambda: rt.outbox.complete(name, token),
                "fail": lambda: rt.outbox.fail(name, token, "no"),
                "dead_letter": lambda: rt.outbox.dead_letter(name, token, "no"),
                "release": lambda: rt.outbox.release(name, token),
            }[line.strip()]())

anyio.run(main, *sys.argv[1:])
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Holder:
    """A real process that claims one task and then does what it is told."""

    def __init__(self, path: Path, lease_s: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path), str(lease_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.task = self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, call: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(call + "\n")
        self.process.stdin.flush()
        return self._line()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def test_1_no_task_is_lost_or_settled_twice_by_workers_killed_with_kill_9() -> None:
    command = [sys.executable, str(SOAK), "--tasks", "150", "--processes", "3", "--kill-every-ms", "150"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    assert re.search(r"[1-9]\d* kills.*: lost = 0, double = 0$", ran.stdout.strip()), ran.stdout


async def test_2_a_worker_stopped_past_its_lease_gets_stale_claim_and_disturbs_nobody(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    async with runtime(path) as rt:
        await put(rt, "t")
        holder = await anyio.to_thread.run_sync(Holder, path, 1.0)
        try:
            assert holder.task == "t" and await anyio.to_thread.run_sync(holder.tell, "renew") == "ok"
            holder.signal(signal.SIGSTOP)
            held = None
            with anyio.fail_after(10):
                while held is None:
                    await anyio.sleep(0.05)
                    held = await rt.outbox.claim("me")
            holder.signal(signal.SIGCONT)
            for call in ("complete", "fail", "renew", "dead_letter", "release"):
                assert await anyio.to_thread.run_sync(holder.tell, call) == "stale_claim"
            assert await code(rt.outbox.renew("t", held.token)) == "ok"
            assert await rt.outbox.complete("t", held.token) == "key-t"
            assert await anyio.to_thread.run_sync(holder.tell, "complete") == "stale_claim"
        finally:
            holder.end()


async def test_2_two_hundred_interleavings_of_a_late_and_a_new_holder(tmp_path: Path) -> None:
    clocks = Clocks()
    async with runtime(tmp_path / "cks.db", clocks, outbox_lease_s=60, outbox_attempts_max=9) as rt:
        for seed in range(200):
            rng, name = random.Random(seed), f"t{seed}"
            await put(rt, name)
            late = await rt.outbox.claim("late")
            assert late is not None and late.task_id == name
            clocks.pass_ms(rng.choice([60_000, 60_001, DAY_MS]))
            late_calls = [rt.outbox.renew, rt.outbox.complete, rt.outbox.release]
            # some calls of the late one come before the new holder, some between its calls, some after it is done
            new = None
            for _ in range(rng.randint(3, 8)):
                if rng.random() < 0.5:
                    call = rng.choice([*late_calls, rt.outbox.fail, rt.outbox.dead_letter])
                    more = () if call in late_calls else ("no",)
                    assert await code(call(name, late.token, *more)) == "stale_claim"
                elif new is None:
                    new = await rt.outbox.claim("new")
                    assert new is not None and (new.task_id, new.attempts) == (name, 2)
                else:
                    clocks.pass_ms(rng.randint(1, 59_999))
                    assert await code(rt.outbox.renew(name, new.token)) == "ok"
            new = new or await rt.outbox.claim("new")
            assert new is not None
            assert await rt.outbox.complete(name, new.token) == f"key-{name}"
            assert await code(rt.outbox.complete(name, late.token)) == "stale_claim"


@pytest.mark.parametrize("wall_ms", [1_767_225_599_000, 1_767_225_600_000, 1_790_000_000_123])
async def test_3_failed_tasks_are_due_again_in_d_to_2d(tmp_path: Path, wall_ms: int) -> None:
    clocks = Clocks(wall_ms=wall_ms)
    limit = (1 << 63) - 1
    async with runtime(tmp_path / "cks.db", clocks, outbox_attempts_max=limit) as rt:
        await put(rt, "t")
        delays = []
        for attempt in [*range(1, 31), *(1 << n for n in range(5, 63)), limit - 1]:
            async with rt.store.unit() as unit:
                await unit.execute("UPDATE cks_outbox_tasks SET attempts = ?, next_retry_at = 0", attempt - 1)
            held = await rt.outbox.claim("me")
            assert held is not None and held.attempts == attempt
            task = await rt.outbox.fail("t", held.token, "no")
            assert isinstance(task.state, Ready)
            base_ms = 1000 * min(2 ** min(attempt, 12), 3600)
            delay_ms = task.state.due_ms - clocks.wall_ms
            assert base_ms <= delay_ms <= 2 * base_ms
            delays.append(delay_ms / base_ms)
        assert statistics.stdev(delays) > 0.15, "no jitter"


async def test_4_a_task_that_kills_its_worker_is_dead_after_the_last_attempt(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    async with runtime(path, outbox_attempts_max=2) as rt:
        await put(rt, "killer")
        for attempt in range(1, 3):
            holder = await anyio.to_thread.run_sync(Holder, path, 0.2)
            holder.end()
            assert holder.task == "killer"
            assert (await rt.outbox.get("killer")).state.attempts == attempt  # type: ignore[union-attr]
            await anyio.sleep(0.25)
        assert await rt.outbox.claim("me") is None
        state = (await rt.outbox.get("killer")).state
        assert isinstance(state, Dead) and state.attempts == 2
        assert state.error is not None and state.error.startswith("Attempt 2, by holder")


async def test_5_a_wall_clock_that_is_a_day_off_steals_no_lease_and_holds_none_longer(tmp_path: Path) -> None:
    clocks = Clocks()
    path = tmp_path / "cks.db"
    async with (
        runtime(path, clocks, outbox_lease_s=60, outbox_attempts_max=1000) as right,
        runtime(path, clocks, skew_ms=DAY_MS, outbox_lease_s=60, outbox_attempts_max=1000) as fast,
        runtime(path, clocks, skew_ms=-DAY_MS, outbox_lease_s=60, outbox_attempts_max=1000) as slow,
    ):
        await put(right, "t")
        rng = random.Random(5)
        for turn in range(50):
            workers = [right, fast, slow]
            rng.shuffle(workers)
            holder, *others = workers
            held = await holder.outbox.claim("holder")
            assert held is not None and held.attempts == turn + 1
            clocks.pass_ms(59_999)
            for other in others:
                assert await other.outbox.claim("thief") is None
            assert await code(holder.outbox.renew("t", held.token)) == "ok"
            # the host's wall clock itself may jump as well: leases do not count by it
            clocks.wall_ms += rng.choice([-DAY_MS, 0, DAY_MS])
            clocks.pass_ms(59_999)
            for other in others:
                assert await other.outbox.claim("thief") is None
            clocks.pass_ms(1)
            clocks.wall_ms = 1_767_225_600_000 + turn * 1000


async def test_5_a_lease_of_another_boot_has_ended(tmp_path: Path) -> None:
    clocks = Clocks()
    async with runtime(tmp_path / "cks.db", clocks) as rt:
        await put(rt, "t")
        before = await rt.outbox.claim("me")
        assert before is not None
        clocks.boot_id, clocks.lease_ms = "boot-2", 5
        assert await code(rt.outbox.complete("t", before.token)) == "stale_claim"
        after = await rt.outbox.claim("me")
        assert after is not None and after.attempts == 2


async def _fill(path: Path, each: int) -> None:
    """As many tasks that are dead as tasks that wait, a fifth of these due."""
    async with runtime(path) as rt, rt.store.unit() as unit:
        later_ms = rt.clock() + DAY_MS
        await unit.execute_many(
            "INSERT INTO cks_outbox_tasks (task_id, task_type, session_id, payload, status, attempts, next_retry_at,"
            " created_at, dead_at, dedupe_key) VALUES (?, ?, ?, ?, ?, 5, ?, ?, ?, ?)",
            (
                (
                    name := f"{status}-{n}",
                    TASK_TYPES[n % 4],
                    f"s{n % 50}",
                    '{"diagnostics": "' + "x" * 300 + '"}',
                    status,
                    n if n % 5 == 0 else later_ms + n,
                    n,
                    n if status == "DEAD" else None,
                    name,
                )
                for status in ("PENDING", "DEAD")
                for n in range(each)
            ),
        )


async def test_12_claims_and_pages_among_many_tasks(tmp_path: Path) -> None:
    path = tmp_path / "cks.db"
    await _fill(path, 20_000)  # bench/outbox.py times claims among 200,000
    async with runtime(path, outbox_attempts_max=10) as rt:
        filters: list[tuple[list[str] | None, str | None]] = [
            (None, None),
            ([TASK_TYPES[0]], None),
            (None, "s20"),
            ([TASK_TYPES[0]], "s40"),
            ([TASK_TYPES[5]], None),
        ]
        for index in range(100):
            types, session = filters[index % len(filters)]
            held = await rt.outbox.claim("me", types, session)
            assert (held is None) == (types == [TASK_TYPES[5]]), (types, session)
        first = await rt.outbox.page("DEAD", limit=50)
        second = await rt.outbox.page("DEAD", None, None, (first[-1].created_at_ms, first[-1].task_id), 50)
        assert [task.created_at_ms for task in first + second] == list(range(100))


async def test_the_queue_is_still_there_after_a_restart(tmp_path: Path) -> None:
    async with runtime(tmp_path / "cks.db") as rt:
        await put(rt, "a", "b")
        held = await rt.outbox.claim("me")
        assert held is not None
    async with runtime(tmp_path / "cks.db") as rt:
        assert await status(rt, "a") == "IN_PROGRESS" and await status(rt, "b") == "PENDING"
        assert await rt.outbox.complete("a", held.token) == "key-a"
