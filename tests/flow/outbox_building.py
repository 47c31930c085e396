"""Small builders for tests of the outbox: runtimes on one file, with clocks that a test can turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from cks_runtime.config import RuntimeConfig
from cks_runtime.model.errors import CksError
from cks_runtime.runtime import Runtime
from cks_runtime.store import outbox as rows
from cks_runtime.store.outbox import TASK_TYPES
from cks_runtime.store.ports import LeaseClock, Store
from cks_runtime.store.sqlite import open_sqlite

DAY_MS = 86_400_000


@dataclass(slots=True)
class Clocks:
    """Both clocks of a test. Leases of every runtime on one host count by the same one."""

    wall_ms: int = 1_767_225_600_000
    lease_ms: int = 1_000_000
    boot_id: str = "boot-1"
    skew_ms: dict[str, int] = field(default_factory=dict)

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.lease_ms += ms

    def lease(self) -> LeaseClock:
        return LeaseClock(self.lease_ms, self.boot_id)


@asynccontextmanager
async def runtime(
    path: object, clocks: Clocks | None = None, *, skew_ms: int = 0, **config: Any
) -> AsyncIterator[Runtime]:
    """A runtime on a file; with `clocks` its wall clock is theirs plus `skew_ms`."""

    async def opener(settings: RuntimeConfig) -> Store:
        store = await open_sqlite(settings.db_path, "NORMAL")
        if clocks is not None:
            store.clock = clocks.lease
        return store

    if clocks is not None:
        config["clock"] = lambda: clocks.wall_ms + skew_ms
    async with Runtime.open(RuntimeConfig(db_path=str(path), **config), opener=opener) as rt:
        yield rt


async def put(rt: Runtime, *names: str, task_type: str = TASK_TYPES[0], session: str = "main") -> None:
    async with rt.store.unit() as unit:
        for name in names:
            await rows.put_task(unit, name, task_type, session, {"name": name}, f"key-{name}", 1)


async def code(awaitable: Any) -> str:
    """The code of the error a call ends with; `ok` when it does not."""
    try:
        await awaitable
    except CksError as error:
        return error.code
    return "ok"


async def status(rt: Runtime, name: str) -> str | None:
    """The stored status of a task, None when it is off the queue."""
    async with rt.store.reader() as reader:
        found = await reader.fetch("SELECT status FROM cks_outbox_tasks WHERE task_id = ?", name)
    return str(found[0][0]) if found else None
