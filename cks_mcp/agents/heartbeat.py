"""The heartbeat of a worker process: the row by which `runtime_status` shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict

import anyio
import structlog

from cks_mcp.agents.loop import Worker
from cks_runtime.model.canon import Json
from cks_runtime.model.errors import CksError
from cks_runtime.runtime import Runtime
from cks_runtime.store.agents import AgentRow, put_agent, remove_agent, remove_silent_agents

INTERVAL_S = 10.0
SILENT_S = 86_400.0
"""How long the row of a killed process is kept for people to see."""
FAREWELL_S = 1.0

log = structlog.get_logger(__name__)


@asynccontextmanager
async def beating(
    rt: Runtime, worker: Worker, about: Callable[[], dict[str, Json]], interval_s: float = INTERVAL_S
) -> AsyncIterator[None]:
    """Beat while the block runs; leaving it takes the row away. `about` tells more than the worker knows."""
    started_ms = rt.clock()

    async def beat(*, first: bool = False) -> None:
        now_ms = rt.clock()
        task = worker.current
        body: dict[str, Json] = {
            **asdict(worker.tally),
            "state": "idle" if task is None else "working",
            "task_id": None if task is None else task.task_id,
            **about(),
        }
        row = AgentRow(worker.owner, worker.name, started_ms, now_ms, int(interval_s * 1000), body)
        async with rt.store.unit() as unit:
            if first:
                await remove_silent_agents(unit, now_ms - int(SILENT_S * 1000))
            await put_agent(unit, row)

    async def keep_beating() -> None:
        while True:
            await anyio.sleep(interval_s)
            try:
                await beat()
            except CksError as error:
                # a full or locked database must not end the worker
                log.warning("no heartbeat", worker=worker.name, error=error.message)

    await beat(first=True)
    rt.run([keep_beating])
    try:
        yield
    finally:
        with anyio.move_on_after(FAREWELL_S, shield=True):
            try:
                async with rt.store.unit() as unit:
                    await remove_agent(unit, worker.owner)
            except CksError as error:
                log.warning("the heartbeat's row stays", worker=worker.name, error=error.message)
