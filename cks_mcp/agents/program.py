"""What worker programs share: their command line, and a clean end on SIGTERM."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version

import anyio

from cks_mcp.agents.loop import Worker
from cks_mcp.lifecycle import start_exit_deadline

GRACE_S = 3.0  # for giving the task back; the rest of the five seconds closes the database


def parse_once(program: str, description: str, argv: Sequence[str] | None = None) -> bool:
    """Whether `--once` was given. `--help`, `--version` and wrong arguments end the program, as argparse does."""
    parser = argparse.ArgumentParser(
        prog=program, description=description, epilog="Settings are read from the environment (CKS_…)."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('cks')}")
    parser.add_argument("--once", action="store_true", help="work off what is due, then exit")
    return bool(parser.parse_args(argv).once)


def run_worker(open_worker: Callable[[], AbstractAsyncContextManager[Worker]], *, once: bool) -> None:
    """Open a worker and run it to its end: nothing due (`once`), SIGTERM or SIGINT.

    A signal ends it within 5 s: the task at work is released, the database closed. What else ends it is raised.
    """
    anyio.run(_run, open_worker, once, backend="asyncio")


async def _run(open_worker: Callable[[], AbstractAsyncContextManager[Worker]], once: bool) -> None:
    failure: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        started: list[Worker] = []
        tasks.start_soon(_end_on_signal, tasks.cancel_scope, started)
        try:
            async with open_worker() as worker:
                started.append(worker)
                await worker.run(once=once)
        except Exception as error:
            failure = error  # raised below as itself, not wrapped by the task group
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _end_on_signal(everything: anyio.CancelScope, started: Sequence[Worker]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            start_exit_deadline()
            for worker in started:
                worker.stop()
            if started:
                await anyio.sleep(GRACE_S)
            everything.cancel()
            return
