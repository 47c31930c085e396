"""How much later than an empty MCPServer does `cks-mcp` answer `initialize`, also with 1,000 sessions stored?

Servers are started by turns, so that whatever else the machine does hits all of them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

from bench.report import line
from cks_runtime import Runtime, RuntimeConfig

ROUNDS = 15
LIMIT = 1.3
EMPTY = [sys.executable, "-c", "from mcp.server import MCPServer\nMCPServer('empty').run()"]
SERVER = [str(Path(sys.executable).parent / "cks-mcp")]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}


def seconds_to_answer(command: list[str], database: Path) -> float:
    """From starting the process to its answer to `initialize`."""
    started = time.perf_counter()
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "CKS_MCP_DB_PATH": str(database), "CKS_LOG_LEVEL": "ERROR"},
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        taken = time.perf_counter() - started
        assert "result" in answer, answer
        process.stdin.close()
        process.wait(timeout=10)
    return taken


async def store_sessions(path: Path) -> None:
    """A database with 1,000 sessions."""
    async with Runtime.open(RuntimeConfig(db_path=str(path))) as rt:
        for number in range(1_000):
            thing = {"identity": {"id": f"obj-{number}", "type": "Body", "name": "X"}}
            await rt.commits.evolve(f"s{number}", [{"op": "add_object", **thing}], create=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cks-bench-") as folder:
        full, fresh = Path(folder) / "full.db", Path(folder) / "fresh.db"
        anyio.run(store_sessions, full)
        contestants = [(EMPTY, fresh), (SERVER, fresh), (SERVER, full)]
        for command, database in contestants:
            seconds_to_answer(command, database)  # fills the file cache and writes the compiled modules
        rounds = [[seconds_to_answer(*one) for one in contestants] for _ in range(ROUNDS)]
    empty, ours, stored = (statistics.median(times) for times in zip(*rounds, strict=True))
    for name, taken in (("", ours), (", 1,000 sessions stored", stored)):
        ratio = taken / empty
        detail = f"{taken * 1000:.0f} ms, {empty * 1000:.0f} ms"
        line(f"answer to initialize / empty MCPServer{name}", ratio, "<= 1.3 x", ratio <= LIMIT, detail)


if __name__ == "__main__":
    main()
