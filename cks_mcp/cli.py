"""The command line of `cks-mcp`. Imports nothing slow before it is known that a server is wanted."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from importlib.metadata import version

EPILOG = """\
settings come from the environment; the most used:
  CKS_MCP_DB_PATH       the database: a file, or :memory:   (default ~/.cks-mcp/cks_mcp.db)
  CKS_DEFAULT_SESSION   the session that is meant when none is named   (default main)
  CKS_TOOLSETS          core,conflicts,documents,agent   (default: the first three)
  CKS_LOG_LEVEL         DEBUG, INFO, WARNING or ERROR; logs go to stderr   (default INFO)
README.md lists all of them.
"""


def main() -> None:
    """Exit codes: 0 done, 1 the check found damage, 2 wrong arguments or settings, or it could not start."""
    args = _parser().parse_args()
    if args.command == "secret":
        print(secrets.token_urlsafe(48))
    elif args.command == "check":
        _check()
    else:
        _serve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cks-mcp",
        description="Serve a shared, versioned body of knowledge to an MCP client over stdin and stdout.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cks-mcp {version('cks')}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    for name, what in (
        ("secret", "print a new secret for gossip, the same for all replicas"),
        ("check", "read the whole database and compare everything with its hash; exit code 1 when damaged"),
    ):
        command = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        command.add_argument("--version", action="version", version=f"cks-mcp {version('cks')}")
    return parser


def _serve() -> None:
    from cks_mcp.lifecycle import claim_standard_streams, exit_on_early_signals, pause_gc

    exit_on_early_signals()
    pause_gc()
    streams = claim_standard_streams()
    # structlog loads rich for pretty tracebacks wherever it is installed; this server logs plain lines
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]

    from cks_runtime.settings import fail, settings_or_exit

    settings = settings_or_exit("cks-mcp")

    from cks_runtime.logs import configure_logging

    configure_logging(level=settings.log_level, format=settings.log_format, secrets=settings.secrets())

    from cks_mcp.app import make_server
    from cks_mcp.stdio import run_stdio
    from cks_runtime.model.errors import CksError

    try:
        run_stdio(
            make_server(settings, settings.runtime_config()),
            streams,
            request_bytes_max=settings.max_request_bytes,
        )
    except CksError as error:
        fail("cks-mcp", error)


def _check() -> None:
    import anyio

    from cks_runtime.flow.check import check_database
    from cks_runtime.model.errors import CksError
    from cks_runtime.settings import fail, settings_or_exit

    settings = settings_or_exit("cks-mcp")
    fresh = settings.db_path != ":memory:" and not os.path.exists(settings.db_path)
    try:
        report = anyio.run(check_database, settings.db_path, _progress)
    except CksError as error:
        fail("cks-mcp", error)
    for problem in report.problems:
        print(problem)
    if fresh:
        print(f"{settings.db_path} did not exist: it was made, and is empty.")
    count = len(report.problems)
    print(
        f"{settings.db_path}: {report.blobs} blobs, {report.versions} versions, {report.sessions} sessions, "
        f"{report.documents} documents read; {count or 'no'} problem{'' if count == 1 else 's'}."
    )
    raise SystemExit(1 if report.problems else 0)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {total} blobs", end="" if done < total else "\n", file=sys.stderr, flush=True)
