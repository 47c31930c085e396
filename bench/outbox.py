"""How many tasks a second are claimed and completed, against a raw UPDATE … RETURNING and DELETE in SQLite?"""

from __future__ import annotations

import os
import secrets
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio

from bench.report import line
from cks_runtime import Runtime, RuntimeConfig
from cks_runtime.store.outbox import TASK_TYPES

SIZES = (100, 10_000, 100_000)
PROCESSES = (1, 2, 4)
ROUNDS = 11
BATCH = 100  # tasks that one round takes off a queue; it is filled up again before the next
PAYLOAD = '{"diagnostics": "' + "x" * 400 + '"}'
ROW = "(task_id, task_type, session_id, payload, status, attempts, next_retry_at, created_at, dedupe_key)"
RAW_TABLE = f"CREATE TABLE cks_outbox_tasks {ROW.replace('task_id', 'task_id TEXT PRIMARY KEY')}"
RAW_CLAIM = (
    "UPDATE cks_outbox_tasks SET status = 'IN_PROGRESS', attempts = attempts + 1, dedupe_key = ? WHERE task_id ="
    " (SELECT task_id FROM cks_outbox_tasks WHERE status = 'PENDING' AND next_retry_at <= ? ORDER BY next_retry_at"
    " LIMIT 1) RETURNING task_id, payload, attempts"
)
RAW_COMPLETE = "DELETE FROM cks_outbox_tasks WHERE task_id = ? AND dedupe_key = ?"


def fill(path: Path, wanted: int, status: str = "PENDING") -> None:
    """Bring the queue to `wanted` tasks."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as db:
        (there,) = db.execute(
            "SELECT count(*) FROM cks_outbox_tasks WHERE status = 'PENDING' AND ? = 'PENDING'", (status,)
        ).fetchone()
        now_ms = time.time_ns() // 1_000_000
        db.execute("BEGIN IMMEDIATE")
        db.executemany(
            f"INSERT INTO cks_outbox_tasks {ROW} VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)",
            (
                (
                    name := secrets.token_hex(8),
                    TASK_TYPES[n % 4],
                    f"s{n % 50}",
                    PAYLOAD,
                    status,
                    now_ms,
                    now_ms,
                    name,
                )
                for n in range(wanted - there)
            ),
        )
        db.execute("COMMIT")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def make_raw(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(RAW_TABLE)
        db.execute("CREATE INDEX due ON cks_outbox_tasks (status, next_retry_at)")


async def make_ours(path: Path) -> None:
    async with Runtime.open(RuntimeConfig(db_path=str(path))):
        pass


def work_raw(path: Path, synchronous: str, go: Callable[[], int], done: Callable[[], None]) -> None:
    """A worker process of the raw side: as many tasks as `go` says, again and again."""
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute(f"PRAGMA synchronous = {synchronous}")
    done()
    while count := go():
        for _ in range(count):
            token = secrets.token_hex(16)
            ((task_id, _payload, _attempts),) = db.execute(RAW_CLAIM, (token, time.time_ns() // 1_000_000))
            db.execute(RAW_COMPLETE, (task_id, token))
        done()


def work_ours(path: Path, synchronous: str, go: Callable[[], int], done: Callable[[], None]) -> None:
    """The same through the outbox of a runtime."""

    async def main() -> None:
        config = RuntimeConfig(db_path=str(path), sqlite_synchronous=synchronous)  # type: ignore[arg-type]
        async with Runtime.open(config) as rt:
            done()
            while count := await anyio.to_thread.run_sync(go):
                for _ in range(count):
                    held = await rt.outbox.claim("bench")
                    assert held is not None
                    await rt.outbox.complete(held.task_id, held.token)
                done()

    anyio.run(main)


class Side:
    """One queue with its worker processes, which wait for the next round."""

    def __init__(
        self, path: Path, size: int, processes: int, work: Callable[..., None], synchronous: str
    ) -> None:
        self.path, self.size, self.processes = path, size, processes
        self._pipes: list[tuple[int, int, int]] = []
        for _ in range(processes):
            told, tell = os.pipe()
            heard, hear = os.pipe()
            pid = os.fork()
            if not pid:
                try:
                    work(path, synchronous, lambda: os.read(told, 1)[0], lambda: os.write(hear, b"."))  # noqa: B023
                finally:
                    os._exit(0)
            self._pipes.append((pid, tell, heard))
        self._wait()

    def _wait(self) -> None:
        for _, _, heard in self._pipes:
            assert os.read(heard, 1) == b"."

    def _tell(self, count: int) -> None:
        for _, tell, _ in self._pipes:
            os.write(tell, bytes([count]))

    def rate(self) -> float:
        """Tasks a second in one round."""
        fill(self.path, self.size)
        began = time.perf_counter()
        self._tell(BATCH // self.processes)
        self._wait()
        return BATCH / (time.perf_counter() - began)

    def end(self) -> None:
        self._tell(0)
        for pid, _, _ in self._pipes:
            os.waitpid(pid, 0)


def compare(
    folder: Path, processes: int, sizes: tuple[int, ...], synchronous: str
) -> dict[int, list[tuple[float, float]]]:
    """By size, the rates (ours, raw) of every round. All sides take turns, so that noise hits all alike."""
    sides = {
        size: (
            Side(folder / f"ours-{size}.db", size, processes, work_ours, synchronous),
            Side(folder / f"raw-{size}.db", size, processes, work_raw, synchronous),
        )
        for size in sizes
    }
    rates: dict[int, list[tuple[float, float]]] = {size: [] for size in sizes}
    for turn in range(ROUNDS + 1):
        for size, (ours, raw) in sides.items():
            found = (ours.rate(), raw.rate())
            if turn:  # the first one warms the caches
                rates[size].append(found)
    for pair in sides.values():
        for side in pair:
            side.end()
    return rates


def tell(processes: int, rates: dict[int, list[tuple[float, float]]]) -> None:
    """The ratio of each size, and how much is left of the speed at the largest."""
    for size, found in rates.items():
        ratio = statistics.median(ours / raw for ours, raw in found)
        ours = statistics.median(ours for ours, _ in found)
        name = f"claim + complete / raw SQLite, {size:,} queued, {processes} process(es)"
        line(name, ratio, ">= 0.4 x", ratio >= 0.4, f"{ours:.0f} a second")
    first, last = rates[min(rates)], rates[max(rates)]
    kept = statistics.median(b[0] / a[0] for a, b in zip(first, last, strict=True))
    line(f"tasks a second at 100,000 queued / at 100, {processes} process(es)", kept, ">= 0.8 x", kept >= 0.8)


async def slowest_ms(path: Path, raw_path: Path) -> tuple[float, float]:
    """Milliseconds under which 99 % of 1,000 claims stay, and 99 % of as many raw one-row commits between them."""
    claims, commits = [], []
    filters = [
        (None, None),
        ([TASK_TYPES[0]], None),
        (None, "s7"),
        ([TASK_TYPES[1]], "s1"),
        ([TASK_TYPES[5]], "s1"),
    ]
    with closing(sqlite3.connect(raw_path, isolation_level=None, timeout=30)) as raw:
        raw.execute("PRAGMA synchronous = FULL")
        raw.execute("CREATE TABLE ticks (n INTEGER PRIMARY KEY)")
        async with Runtime.open(RuntimeConfig(db_path=str(path))) as rt:
            for turn in range(1000):
                began = time.perf_counter()
                await rt.outbox.claim("bench", *filters[turn % len(filters)])
                claimed = time.perf_counter()
                raw.execute("INSERT INTO ticks DEFAULT VALUES")
                claims.append(claimed - began)
                commits.append(time.perf_counter() - claimed)
    return tuple(statistics.quantiles(times, n=100)[98] * 1000 for times in (claims, commits))  # type: ignore[return-value]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cks-bench-") as name:
        folder = Path(name)
        for size in SIZES:
            anyio.run(make_ours, folder / f"ours-{size}.db")
            make_raw(folder / f"raw-{size}.db")
        for processes in PROCESSES:
            tell(processes, compare(folder, processes, SIZES, "FULL"))
        ours, raw = zip(*compare(folder, 1, SIZES[:1], "NORMAL")[SIZES[0]], strict=True)
        ratio = statistics.median(ours) / statistics.median(raw)
        line("the same without waiting for the disk, 1 process", ratio, "-", True)
        path = folder / f"ours-{SIZES[-1]}.db"
        fill(path, 100_000)
        fill(path, 100_000, "DEAD")
        claim, commit = anyio.run(slowest_ms, path, folder / f"raw-{SIZES[0]}.db")
        line(
            "99 % of claims among 100,000 queued and 100,000 dead, ms",
            claim,
            "< 20 ms",
            claim < 20,
            f"99 % of raw commits between them: {commit:.2f} ms",
        )


if __name__ == "__main__":
    main()
