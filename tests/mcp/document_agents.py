"""The real server in processes of its own, and agents that edit one document through it."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import TextContent

SERVER = [sys.executable, "-c", "from cks_mcp.cli import main; main()"]
MARKS = ("<<<<<<<", "=======", ">>>>>>>")


@asynccontextmanager
async def serving(db_path: str, **options: Any) -> AsyncIterator[Client]:
    """A client of a server process of its own on this database."""
    environment = {
        **os.environ,
        "CKS_MCP_DB_PATH": db_path,
        "CKS_SQLITE_SYNCHRONOUS": "NORMAL",
        "CKS_LOG_LEVEL": "ERROR",
    }
    command = StdioServerParameters(command=SERVER[0], args=SERVER[1:], env=environment)
    async with Client(stdio_client(command), **options) as client:
        yield client


@dataclass(frozen=True, slots=True)
class Told:
    """An answer: its structured content, the keys of its text in order, and the text's body (None: there is none)."""

    content: dict[str, Any]
    head: dict[str, str]
    body: str | None


async def tell(client: Client, tool: str, **arguments: Any) -> Told:
    """Call a document tool; the answer must be no error, and its two forms must agree."""
    result = await client.call_tool(tool, arguments)
    content = result.structured_content
    assert not result.is_error and content is not None, content
    (block,) = result.content
    assert isinstance(block, TextContent)
    lines, blank, body = block.text.partition("\n\n")
    head = dict(line.split(": ", 1) for line in lines.rstrip("\n").split("\n"))
    for key in ("status", "version", "modified", "content-hash", "your-version", "current-version"):
        assert head.get(key) == _shown(content.get(key.replace("-", "_"))), key
    assert "body" not in content
    return Told(content, head, body if blank else None)


def _shown(value: object) -> str | None:
    return None if value is None else str(value)


async def refused(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a document tool that must answer an error of ours; returns its structured content."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error and result.structured_content is not None, result
    return result.structured_content


async def publish(client: Client, path: str, body: str, expected_version: int, **more: Any) -> dict[str, Any]:
    told = await tell(client, "mark_publish", path=path, body=body, expected_version=expected_version, **more)
    return told.content


@dataclass(slots=True)
class Agent:
    """Edits one document: adds a line of its own, now and then takes one of its own away, reviews candidates.

    `added` and `removed` hold what it was told is published.
    """

    client: Client
    name: str
    path: str
    chance: random.Random
    added: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    candidates: int = 0
    marked: int = 0

    async def work(self, publishes: int) -> None:
        """Publish until as many versions of its own stand."""
        for number in range(publishes):
            read = await tell(self.client, "mark_fetch", path=self.path)
            assert read.body is not None
            lines = read.body.splitlines()
            mine = f"- {self.name} {number}"
            own = sorted(line for line in lines if line in self.added)
            gone = self.chance.choice(own) if own and self.chance.random() < 0.3 else None
            if gone is not None:
                lines.remove(gone)
            lines.insert(self.chance.randint(1, len(lines)), mine)
            await self._publish(lines, int(read.head["version"]), mine, gone)

    async def _publish(self, lines: list[str], version: int, mine: str, gone: str | None) -> None:
        while True:
            told = await tell(
                self.client,
                "mark_publish",
                path=self.path,
                body="\n".join(lines) + "\n",
                expected_version=version,
                author=self.name,
            )
            if told.content["status"] == "ok":
                self.added.add(mine)
                self.removed |= {gone} - set(lines) if gone is not None else set()
                return
            assert told.content["status"] == "merge-candidate" and told.body is not None
            self.candidates += 1
            self.marked += told.content["has_markers"]
            lines, version = review(told, mine), told.content["publish_at_version"]


def review(told: Told, mine: str) -> list[str]:
    """The rule of these agents: keep the lines of both sides of a conflict, each once, the own one among them."""
    assert told.body is not None
    lines = [line for line in told.body.splitlines() if not line.startswith(MARKS)]
    assert mine in lines
    assert told.content["has_markers"] is (len(lines) < len(told.body.splitlines()))
    return list(dict.fromkeys(lines))
