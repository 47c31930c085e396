"""What every act of the demonstration uses: real server processes, checked calls, readable tables."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import Implementation
from tabulate import tabulate

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent
PROGRAMS = Path(sys.executable).parent


WIDTH = 112
CELL_MAX = 76


class Stage:
    """Prints acts, tables and checks; remembers what failed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.failed: list[str] = []
        self.passed = 0
        self._colour = sys.stdout.isatty()

    def act(self, title: str) -> None:
        """Begin a part."""
        print(f"\n{self._paint('1', title)} {'─' * (WIDTH - len(title) - 1)}", flush=True)

    def say(self, text: str) -> None:
        """A line of explanation."""
        print(f"  {text}", flush=True)

    def check(self, truth: object, what: str) -> None:
        """A claim of the demonstration; a false one makes the whole end non-zero."""
        if truth:
            self.passed += 1
        else:
            self.failed.append(what)
        print(f"  {self._paint('32', '✓') if truth else self._paint('31', '✗')} {what}", flush=True)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None
    ) -> None:
        """Rows under headings."""
        cells = [[_cell(value) for value in row] for row in rows]
        if title:
            print(f"\n  {title}")
        print(
            tabulate(cells, headers=list(columns), tablefmt="rounded_outline", disable_numparse=True),
            flush=True,
        )

    def verdict(self) -> int:
        """The last line, and the exit code."""
        if self.failed:
            total = self.passed + len(self.failed)
            print(f"\n{self._paint('31;1', f'{len(self.failed)} of {total} checks failed:')}")
            for what in self.failed:
                print(f"  ✗ {what}")
            return 1
        print(f"\n{self._paint('32;1', f'All {self.passed} checks passed.')}")
        return 0

    def _paint(self, colour: str, text: str) -> str:
        return f"\033[{colour}m{text}\033[0m" if self._colour else text


class Agent:
    """One MCP client with a `cks-mcp` process of its own."""

    def __init__(self, name: str, client: Client, database: Path) -> None:
        self.name = name
        self.client = client
        self.database = database

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A tool's structured answer. Raises RuntimeError for an error, with its message and hint."""
        answer = await self.try_call(tool, **arguments)
        if "code" in answer and "hint" in answer:
            raise RuntimeError(f"{tool}: {answer['code']}: {answer['message']} {answer['hint']}")
        return answer

    async def try_call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """A tool's structured answer, errors included."""
        result = await self.client.call_tool(tool, arguments)
        return dict(result.structured_content or {})

    async def resource(self, uri: str) -> str:
        """The text of a resource."""
        result = await self.client.read_resource(uri)
        return "".join(getattr(part, "text", "") for part in result.contents)


@asynccontextmanager
async def agent(name: str, database: Path, **settings: str) -> AsyncIterator[Agent]:
    """Start a `cks-mcp` process on a database and connect to it; its log goes beside the database."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CKS_")}
    environment |= {"CKS_MCP_DB_PATH": str(database), "CKS_LOG_LEVEL": "INFO", **settings}
    server = StdioServerParameters(command=str(PROGRAMS / "cks-mcp"), args=[], env=environment)
    with open(database.parent / f"{name}.log", "a", encoding="utf-8") as log:  # noqa: ASYNC230
        who = Implementation(name=name, version="1")
        async with Client(stdio_client(server, errlog=log), client_info=who) as client:
            yield Agent(name, client, database)


async def until(
    probe: Callable[[], Awaitable[dict[str, Any] | None]], within_s: float
) -> tuple[dict[str, Any] | None, float]:
    """Ask again and again until there is an answer; returns it (None when time ran out) and the seconds it took."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        found = await probe()
        if found is not None:
            return found, time.monotonic() - began
        await anyio.sleep(0.05)
    return None, time.monotonic() - began


def step(
    id: str,
    name: str,
    premises: list[str],
    conclusion: str,
    confidence: float,
    why: str,
    supersedes: str | None = None,
) -> dict[str, Any]:
    """The operation that records a reasoning step."""
    return {
        "op": "record_inference",
        "identity": {"id": id, "type": "InferenceStep", "name": name},
        "premises": premises,
        "conclusion": conclusion,
        "operator": "deductive",
        "confidence": confidence,
        "justification": why,
        "alternatives_considered": [],
        "supersedes": supersedes,
    }


def patch(object_id: str, **fields: Any) -> dict[str, Any]:
    """The operation that changes some fields of an object."""
    return {"op": "update_object", "object_id": object_id, "structure_patch": fields, "mode": "merge"}


def short(version_id: str) -> str:
    """The first digits of a version id."""
    return version_id[:10]


def _cell(value: object) -> str:
    text = (
        ", ".join(str(item) for item in value)
        if isinstance(value, list)
        else str("" if value is None else value)
    )
    return "\n".join(textwrap.wrap(text, CELL_MAX)) or " "
