"""What many tests share: a clock that is set by hand, a store of every body, and runtimes on a fresh database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from cks_runtime.config import RuntimeConfig
from cks_runtime.runtime import Runtime
from cks_runtime.store.open import open_store
from cks_runtime.store.ports import Store

START_MS = 1_790_000_000_000  # 2026-09-21T13:33:20Z

BODIES = ("file", "memory")

OpenRuntime = Callable[..., AbstractAsyncContextManager[Runtime]]


class FakeClock:
    """Epoch milliseconds that move only when a test says so."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def forward(self, *, s: float = 0, ms: int = 0, days: float = 0) -> None:
        self.now_ms += round(s * 1000) + ms + round(days * 86_400_000)


def location_of(body: str, folder: Path) -> str:
    """Where a database of this body is opened in a test."""
    return ":memory:" if body == "memory" else str(folder / "store.db")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=BODIES)
def body(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def location(body: str, tmp_path: Path) -> str:
    return location_of(body, tmp_path)


@pytest.fixture
async def store(location: str) -> AsyncIterator[Store]:
    opened = await open_store(location, "NORMAL")
    yield opened
    await opened.close()


@pytest.fixture
def open_rt(tmp_path: Path, clock: FakeClock) -> OpenRuntime:
    """Opens runtimes on one database file of this test; keyword arguments are settings.

    `durable=True` waits for the disk as the product does; the others trust the operating system.
    """

    def opened(
        *, durable: bool = False, opener: Any = None, conflict_kinds: Any = (), **settings: Any
    ) -> AbstractAsyncContextManager[Runtime]:
        settings.setdefault("db_path", str(tmp_path / "cks.db"))
        settings.setdefault("clock", clock)
        settings.setdefault("sqlite_synchronous", "FULL" if durable else "NORMAL")
        return Runtime.open(RuntimeConfig(**settings), opener=opener, conflict_kinds=conflict_kinds)

    return opened


@pytest.fixture
async def rt(open_rt: OpenRuntime) -> AsyncIterator[Runtime]:
    async with open_rt() as runtime:
        yield runtime
