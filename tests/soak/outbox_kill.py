"""Workers killed with `kill -9` again and again on one database: no task may be lost, none settled twice.

Usage: python tests/soak/outbox_kill.py [--tasks 10000] [--processes 8] [--kill-every-ms 200] [--seed 1]
Prints `lost = 0, double = 0`; exits with 1 when they are not.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import anyio
import structlog

from cks_mcp.agents.loop import Completed, Settlement, Worker
from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.outbox import Held
from cks_runtime.runtime import Runtime
from cks_runtime.store import outbox as rows
from cks_runtime.store.outbox import TASK_TYPES

LEASE_S = 2.0
STALL_S = 60.0


class _Noting(Worker):
    """Writes down each task that the outbox acknowledged as settled by this process."""

    notes: int

    async def _tell(self, held: Held, settlement: Settlement) -> None:
        await super()._tell(held, settlement)
        os.write(self.notes, f"{held.task_id}\n".encode())


async def _work(held: Held) -> Settlement:
    await anyio.sleep(random.random() * 0.004)
    return Completed()


async def _be_worker(db_path: str, notes_path: str) -> None:
    config = RuntimeConfig(db_path=db_path, outbox_lease_s=LEASE_S, outbox_attempts_max=1000)
    async with Runtime.open(config) as rt:
        worker = _Noting(rt, _work, name="soak", poll_interval_s=0.05)
        worker.notes = os.open(notes_path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        await worker.run()


async def _queue(db_path: str, count: int) -> None:
    async with Runtime.open(RuntimeConfig(db_path=db_path)) as rt, rt.store.unit() as unit:
        for index in range(count):
            name = f"t{index}"
            await rows.put_task(unit, name, TASK_TYPES[index % 4], "main", {"name": name}, name, 1)


def _start(db_path: str, notes_path: str) -> int:
    """A worker process: forked, so that a start costs no imports and is quicker than the next kill."""
    pid = os.fork()
    if pid:
        return pid
    try:
        structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
        anyio.run(_be_worker, db_path, notes_path)
    finally:
        os._exit(70)


def _left(db: sqlite3.Connection) -> int:
    (count,) = db.execute("SELECT count(*) FROM cks_outbox_tasks").fetchone()
    return int(count)


def _kill_until_done(db_path: str, notes_path: str, processes: int, every_s: float) -> int:
    """Keep the workers running and kill one by turns of chance; how many kills it took until the queue was empty."""
    db = sqlite3.connect(db_path, timeout=30)
    pids = [_start(db_path, notes_path) for _ in range(processes)]
    kills, left, moved_at = 0, _left(db), time.monotonic()
    try:
        while left:
            time.sleep(every_s)
            victim = random.randrange(processes)
            os.kill(pids[victim], signal.SIGKILL)
            os.waitpid(pids[victim], 0)
            pids[victim] = _start(db_path, notes_path)
            kills += 1
            now_left = _left(db)
            if now_left != left:
                left, moved_at = now_left, time.monotonic()
            assert time.monotonic() - moved_at < STALL_S, f"{left} tasks left, none settled for {STALL_S} s"
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        db.close()
    return kills


def _judge(db_path: str, notes_path: str, tasks: int) -> tuple[int, int]:
    """(lost, double). Lost: neither queued nor settled. Double: settled by two, by the notes or by the table."""
    db = sqlite3.connect(db_path)
    settled = Counter(row[0] for row in db.execute("SELECT task_id FROM outbox_settled"))
    queued = {row[0] for row in db.execute("SELECT task_id FROM cks_outbox_tasks")}
    db.close()
    noted = Counter(Path(notes_path).read_text().split())
    lost = sum(f"t{index}" not in settled and f"t{index}" not in queued for index in range(tasks))
    double = sum(count > 1 for count in settled.values()) + sum(count > 1 for count in noted.values())
    assert set(noted) <= set(settled), "a task was acknowledged and is still there"
    return lost, double


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--kill-every-ms", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    random.seed(given.seed)
    with tempfile.TemporaryDirectory(prefix="cks-soak-") as folder:
        db_path, notes_path = f"{folder}/cks.db", f"{folder}/notes"
        Path(notes_path).touch()
        anyio.run(_queue, db_path, given.tasks)
        started = time.monotonic()
        kills = _kill_until_done(db_path, notes_path, given.processes, given.kill_every_ms / 1000)
        took_s = time.monotonic() - started
        lost, double = _judge(db_path, notes_path, given.tasks)
    print(f"{given.tasks} tasks, {given.processes} processes, {kills} kills, {took_s:.0f} s: ", end="")
    print(f"lost = {lost}, double = {double}")
    sys.exit(1 if lost or double else 0)


if __name__ == "__main__":
    main()
