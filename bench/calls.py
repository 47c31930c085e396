"""What does a tool call through MCP cost beside an empty tool of an empty server?"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from bench.report import line, medians_ms

EMPTY = """
from mcp.server import MCPServer
server = MCPServer("empty")
@server.tool()
def nothing() -> dict[str, int]:
    return {"count": 0}
server.run()
"""


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="cks-bench-") as folder:
        environment = {
            **os.environ,
            "CKS_MCP_DB_PATH": str(Path(folder) / "cks.db"),
            "CKS_LOG_LEVEL": "ERROR",
        }
        program = str(Path(sys.executable).parent / "cks-mcp")
        ours = StdioServerParameters(command=program, args=[], env=environment)
        empty = StdioServerParameters(command=sys.executable, args=["-c", EMPTY], env=environment)
        async with Client(stdio_client(empty)) as bare, Client(stdio_client(ours)) as cks:

            async def call_empty(_: int) -> None:
                await bare.call_tool("nothing", {})

            async def call_ours(_: int) -> None:
                await cks.call_tool("list_inference_conflicts", {})

            await medians_ms(50, call_empty, call_ours)
            empty_ms, ours_ms = await medians_ms(500, call_empty, call_ours)
    ratio = ours_ms / empty_ms
    line(
        "warm list_inference_conflicts / empty tool of an empty server",
        ratio,
        "<= 1.5 x",
        ratio <= 1.5,
        f"{ours_ms:.2f} ms, {empty_ms:.2f} ms",
    )


if __name__ == "__main__":
    anyio.run(main)
