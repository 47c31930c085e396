"""Small builders for tests of documents: a runtime whose clock ticks, and looks at what a write did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.documents import Documents, Fetched, Stands, Written
from cks_runtime.model.documents import DocumentVersion
from cks_runtime.runtime import Runtime

PLAN = "/team/plan.md"


def ticking() -> Iterator[int]:
    now_ms = 1_767_225_600_000
    while True:
        now_ms += 1000
        yield now_ms


@asynccontextmanager
async def runtime(db_path: str) -> AsyncIterator[Runtime]:
    clock = ticking()
    async with Runtime.open(RuntimeConfig(db_path=db_path, clock=lambda: next(clock))) as rt:
        yield rt


def made(written: Written) -> DocumentVersion:
    assert isinstance(written, Stands) and written.made, written
    return written.version


async def text(docs: Documents, path: str = PLAN) -> str:
    found = await docs.fetch(path)
    assert isinstance(found, Fetched)
    return found.body
