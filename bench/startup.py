"""How much later than an empty MCPServer does a server answer `initialize`?

Usage: python bench/startup.py [command …]. Without a command it measures the shell of the MCP server alone.
Both are started by turns, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUNDS = 15
LIMIT = 1.3
EMPTY = [sys.executable, "-c", "from mcp.server import MCPServer\nMCPServer('empty').run()"]
SHELL = [sys.executable, str(Path(__file__).parent.parent / "tests/mcp/echo_server.py")]
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


def seconds_to_answer(command: list[str]) -> float:
    """From starting the process to its answer to `initialize`."""
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ
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


def main() -> None:
    command = sys.argv[1:] or SHELL
    for one in (EMPTY, command):
        seconds_to_answer(one)  # fills the file cache and writes the compiled modules
    pairs = [(seconds_to_answer(EMPTY), seconds_to_answer(command)) for _ in range(ROUNDS)]
    empty = statistics.median(pair[0] for pair in pairs)
    ours = statistics.median(pair[1] for pair in pairs)
    ratio = ours / empty
    print(
        f"{'answer to initialize / empty MCPServer, medians of 15':<58}{ratio:>10.2f}  {'<= 1.3 x':<12}",
        end="",
    )
    print("ok" if ratio <= LIMIT else "over", f"({empty * 1000:.0f} ms, {ours * 1000:.0f} ms)")


if __name__ == "__main__":
    main()
