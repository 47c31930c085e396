"""Real `cks-mcp` processes on a database, each behind the SDK's client, and answers checked as they come in."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Implementation, TextContent, TextResourceContents

PROGRAM = str(Path(sys.executable).with_name("cks-mcp"))
ANSWER_BYTES_MAX = 60_000
UNLIMITED = ("export_session", "mark_fetch", "mark_publish")
PATIENCE_S = 30.0
NUMBERS = count()

Json = dict[str, Any]
Start = Callable[..., AbstractAsyncContextManager["Agent"]]


def environment(db_path: object, **settings: str) -> dict[str, str]:
    """The surroundings of a server process: nothing of ours leaks in, and writes do not wait for the disk."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("CKS_", "ANTHROPIC_"))}
    chosen = {"CKS_MCP_DB_PATH": str(db_path), "CKS_SQLITE_SYNCHRONOUS": "NORMAL", "CKS_LOG_LEVEL": "WARNING"}
    return {**kept, **chosen, **settings}


@asynccontextmanager
async def serving(
    db_path: object,
    *,
    name: str = "tester",
    mode: str = "auto",
    settings: Mapping[str, str] = {},
    **options: Any,
) -> AsyncIterator[Agent]:
    """An agent with a server process of its own, of either generation of the protocol (`mode="legacy"`)."""
    command = StdioServerParameters(command=PROGRAM, args=[], env=environment(db_path, **settings))
    who = Implementation(name=name, version="1")
    async with Client(stdio_client(command), client_info=who, mode=mode, **options) as client:
        yield Agent(client)


class Agent:
    """Calls tools; whatever comes back must have the form that every answer has."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def answer(self, tool: str, arguments: Json) -> CallToolResult:
        result = await self.client.call_tool(tool, arguments)
        assert result.structured_content is not None
        (block,) = result.content
        assert isinstance(block, TextContent) and block.text
        one_by_id = tool == "explain_knowledge" and "object_id" in arguments
        if tool not in UNLIMITED and not one_by_id:
            assert wire_size(result) < ANSWER_BYTES_MAX, tool
            if block.text.startswith("{"):
                assert json.loads(block.text) == result.structured_content
        return result

    async def ok(self, tool: str, **arguments: Any) -> Json:
        """The result of a call that must not be refused. `from_` stands for `from`."""
        result = await self.answer(tool, _named(arguments))
        assert not result.is_error, result.structured_content
        return dict(result.structured_content or {})

    async def refused(self, tool: str, code: str, **arguments: Any) -> Json:
        """The error of a call that must answer this code."""
        result = await self.answer(tool, _named(arguments))
        error = dict(result.structured_content or {})
        assert result.is_error, error
        assert set(error) - {"truncated"} == {"code", "message", "hint", "details"}
        assert error["code"] == code and error["message"] and error["hint"], error
        return error

    async def pages(self, tool: str, items: str, **arguments: Any) -> list[Json]:
        """All items of a list, page by page."""
        found: list[Json] = []
        while True:
            page = await self.ok(tool, **arguments)
            found += page[items]
            if "next_cursor" not in page:
                return found
            assert page[items], "a page that is not the last one has something on it"
            arguments["cursor"] = page["next_cursor"]

    async def resource(self, uri: str) -> Json:
        (contents,) = (await self.client.read_resource(uri)).contents
        assert isinstance(contents, TextResourceContents) and contents.mime_type == "application/json"
        found: Json = json.loads(contents.text)
        return found

    async def resource_error(self, uri: str) -> Json:
        with pytest.raises(MCPError) as caught:
            await self.client.read_resource(uri)
        error: Json = caught.value.error.data
        return error

    async def evolve(self, session_id: str, *operations: Json, **more: Any) -> Json:
        return await self.ok("evolve_knowledge", session_id=session_id, operations=[*operations], **more)

    async def session(self, *operations: Json, **more: Any) -> str:
        """A new session that holds what these operations make."""
        name = f"s{next(NUMBERS)}"
        await self.evolve(name, *operations, create=True, **more)
        return name

    async def head(self, session_id: str) -> str:
        return str((await self.ok("explain_knowledge", session_id=session_id))["head"]["version_id"])

    async def object(self, session_id: str, object_id: str) -> Json:
        explained = await self.ok("explain_knowledge", session_id=session_id, object_id=object_id)
        found: Json = explained["object"]
        return found

    async def export(self, session_id: str) -> Json:
        return await self.ok("export_session", session_id=session_id)

    async def until(self, tool: str, reached: Callable[[Json], bool], **arguments: Any) -> Json:
        """The first answer that satisfies `reached`."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                found = await self.ok(tool, **arguments)
                if reached(found):
                    return found
                await anyio.sleep(0.02)


def _named(arguments: Json) -> Json:
    return {("from" if key == "from_" else key): value for key, value in arguments.items()}


def wire_size(result: CallToolResult) -> int:
    """Bytes of an answer, text and structured content together, as they go over the wire."""
    whole = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return len(json.dumps(whole, separators=(",", ":"), ensure_ascii=False).encode())


# ---- knowledge


def identity(id: str, type: str = "Body", name: str = "") -> Json:
    return {"id": id, "type": type, "name": name or id}


def whole(id: str, type: str = "Body", name: str = "", **structure: Any) -> Json:
    """An object as the knowledge format has it."""
    return {"identity": identity(id, type, name), "structure": structure}


def add(id: str, type: str = "Body", name: str = "", **structure: Any) -> Json:
    return {"op": "add_object", **whole(id, type, name, **structure)}


def update(id: str, mode: str = "merge", **patch: Any) -> Json:
    return {"op": "update_object", "object_id": id, "structure_patch": patch, "mode": mode}


def remove(id: str) -> Json:
    return {"op": "remove_object", "object_id": id}


def relate(id: str, *participants: str, relation_type: str = "orbits", **structure: Any) -> Json:
    return {
        "op": "add_relation",
        "identity": identity(id, "Relation"),
        "participants": [*participants],
        "relation_type": relation_type,
        "structure": structure,
    }


def infer(id: str, premises: Sequence[str], conclusion: str, confidence: float, **more: Any) -> Json:
    return {
        "op": "record_inference",
        "identity": identity(id, "InferenceStep"),
        "premises": [*premises],
        "conclusion": conclusion,
        "operator": "deductive",
        "confidence": confidence,
        **more,
    }


def settle(conclusion: str, winner: str, reasoning: str = "") -> Json:
    return {
        "op": "resolve_inference_conflict",
        "conclusion_id": conclusion,
        "winner_id": winner,
        "reasoning": reasoning,
    }


def ids(objects: Sequence[Mapping[str, Any]]) -> list[str]:
    return [entry["identity"]["id"] for entry in objects]
