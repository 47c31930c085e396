"""What does a commit cost, in time and bytes, and does it stay flat as the session grows?"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import aiosqlite
import anyio

from bench.report import line, medians_ms
from cks_runtime import Runtime, RuntimeConfig

SIZES = (100, 5_000)
ROUNDS = 300


def thing(number: int) -> dict[str, Any]:
    return {
        "op": "add_object",
        "identity": {"id": f"obj-{number}", "type": "Body", "name": f"Object {number}"},
        "structure": {"radius_km": number * 1.5, "note": "some words about it " * 8},
    }


def edit(number: int, mark: int) -> list[dict[str, Any]]:
    return [
        {
            "op": "update_object",
            "object_id": f"obj-{number}",
            "structure_patch": {"mark": mark},
            "mode": "merge",
        }
    ]


async def fill(rt: Runtime, size: int) -> str:
    """A session of `size` objects, and its id."""
    name = f"s{size}"
    await rt.commits.evolve(name, [thing(number) for number in range(size)], create=True)
    return name


def log_bytes(path: Path) -> int:
    """Size of the database's write-ahead log."""
    return os.path.getsize(f"{path}-wal")


async def stored_bytes(rt: Runtime) -> int:
    """Bytes of all rows that a commit writes."""
    async with rt.store.reader() as reader:
        rows = await reader.fetch(
            "SELECT (SELECT coalesce(sum(length(data) + 40), 0) FROM blobs)"
            " + (SELECT coalesce(sum(length(data) + length(parents) + 48), 0) FROM versions)"
            " + (SELECT coalesce(sum(length(body) + 40), 0) FROM journal)"
        )
    return int(rows[0][0])


async def time_commits(folder: Path) -> None:
    """The commit against itself at two sizes, and against one raw row with the same durability."""
    raw = await aiosqlite.connect(folder / "raw.db", isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        await raw.execute_fetchall(f"PRAGMA {pragma}")
    await raw.execute_fetchall("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)")

    async def one_row(turn: int) -> None:
        await raw.execute_fetchall("BEGIN IMMEDIATE")
        await raw.execute_fetchall("INSERT INTO t (v) VALUES (?)", (f"row {turn}",))
        await raw.execute_fetchall("COMMIT")

    async with Runtime.open(RuntimeConfig(db_path=str(folder / "cks.db"))) as rt:
        small, large = [await fill(rt, size) for size in SIZES]

        async def commit_small(turn: int) -> None:
            await rt.commits.evolve(small, edit(turn % 90, turn + 1))

        async def commit_large(turn: int) -> None:
            await rt.commits.evolve(large, edit(turn * 7 % 4_900, turn + 1))

        await medians_ms(20, one_row, commit_small, commit_large)
        row_ms, small_ms, large_ms = await medians_ms(
            ROUNDS, one_row, lambda t: commit_small(t + 1000), lambda t: commit_large(t + 1000)
        )
        statements = rt.store.last_statements  # type: ignore[attr-defined]
    await raw.close()
    ratio = large_ms / small_ms
    line(
        "commit of one object at 5,000 objects / at 100",
        ratio,
        "<= 1.5 x",
        ratio <= 1.5,
        f"{large_ms:.2f} ms, {small_ms:.2f} ms",
    )
    ratio = large_ms / row_ms
    line(
        "commit of one object at 5,000 / raw one-row transaction",
        ratio,
        "<= 6 x",
        ratio <= 6,
        f"{large_ms:.2f} ms, {row_ms:.2f} ms",
    )
    line("awaited statements a commit", statements, "<= 12", statements <= 12)


async def weigh_commits(folder: Path) -> None:
    """Bytes a commit adds at 5,000 objects: rows, and write-ahead log."""
    path = folder / "weigh.db"
    commits = 50
    async with Runtime.open(RuntimeConfig(db_path=str(path))) as rt:
        name = await fill(rt, 5_000)
        async with rt.store.reader() as reader:
            await reader.fetch("PRAGMA wal_checkpoint(TRUNCATE)")
    async with Runtime.open(RuntimeConfig(db_path=str(path))) as rt:
        await rt.commits.evolve(name, edit(1, -1))
        rows, log = await stored_bytes(rt), log_bytes(path)
        for turn in range(commits):
            await rt.commits.evolve(name, edit(turn * 97 % 5_000, turn + 1))
        rows, log = await stored_bytes(rt) - rows, log_bytes(path) - log
    line("new rows a commit at 5,000 objects, KB", rows / commits / 1000, "< 20 KB", rows / commits < 20_000)
    line(
        "write-ahead log a commit at 5,000 objects, KB",
        log / commits / 1000,
        "< 100 KB",
        log / commits < 100_000,
    )


async def time_branches(folder: Path) -> None:
    """A branch of a small and a large session."""
    async with Runtime.open(RuntimeConfig(db_path=str(folder / "branch.db"))) as rt:
        small, large = [await fill(rt, size) for size in SIZES]
        small_ms, large_ms = await medians_ms(
            100, lambda _: rt.branches.create(small), lambda _: rt.branches.create(large)
        )
    ratio = large_ms / small_ms
    line("branch of 5,000 objects / of 100", ratio, "<= 1.5 x", ratio <= 1.5, f"{large_ms:.2f} ms")


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cks-bench-") as folder:
        await time_commits(Path(folder))
        await weigh_commits(Path(folder))
        await time_branches(Path(folder))


if __name__ == "__main__":
    anyio.run(main)
