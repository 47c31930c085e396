"""The sweepers as a program of their own, beside or instead of those in a server."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from importlib.metadata import version

import anyio

from cks_runtime.config import RuntimeConfig
from cks_runtime.logs import configure_logging
from cks_runtime.model.errors import CksError
from cks_runtime.runtime import Runtime
from cks_runtime.settings import fail, settings_or_exit
from sweepers.team import SweeperTeam

SIGNALS = (signal.SIGTERM, signal.SIGINT)

Work = Callable[[RuntimeConfig], Awaitable[None]]


def main() -> None:
    """Exit codes: 0 done or stopped by a signal, 2 wrong arguments or settings, or the database cannot be used."""
    args = _parser().parse_args()
    settings = settings_or_exit("sweepers")
    configure_logging(level=settings.log_level, format=settings.log_format, secrets=settings.secrets())
    error = anyio.run(_until_stopped, _sweep_once if args.once else _serve, settings.runtime_config())
    if error is not None:
        fail("sweepers", error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sweepers",
        description="Find what went stale in a CKS database: reasoning, dates and verifications.",
        epilog="Settings come from the environment, as for cks-mcp: CKS_MCP_DB_PATH, CKS_INFERENCE_SWEEP_INTERVAL, …",
    )
    parser.add_argument("--version", action="version", version=f"sweepers {version('cks')}")
    parser.add_argument("--once", action="store_true", help="sweep once, print what was found, and end")
    return parser


async def _until_stopped(work: Work, config: RuntimeConfig) -> CksError | None:
    """Run until the work is done or a signal arrives; the error that ended it, if one did."""
    error: CksError | None = None
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        async with anyio.create_task_group() as tasks:

            async def stop() -> None:
                async for _ in signals:
                    tasks.cancel_scope.cancel()

            tasks.start_soon(stop)
            try:
                await work(config)
            except CksError as found:
                error = found
            tasks.cancel_scope.cancel()
    return error


async def _serve(config: RuntimeConfig) -> None:
    async with Runtime.open(config) as rt:
        SweeperTeam.standard(rt).start()
        await anyio.sleep_forever()


async def _sweep_once(config: RuntimeConfig) -> None:
    async with Runtime.open(config) as rt:
        for name, report in (await SweeperTeam.standard(rt).run_now()).items():
            print(json.dumps({"sweeper": name, **asdict(report)}))
