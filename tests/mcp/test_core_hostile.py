"""Promise 20: whatever stands in a call's arguments, the answer is a result or an error that names what is wrong.

`CKS_HOSTILE_CALLS=10000 pytest tests/mcp/test_core_hostile.py` is the longer run.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from mcp_types import CallToolResult
from serving import PATIENCE_S, Agent, add, infer, relate, serving

CALLS = int(os.environ.get("CKS_HOSTILE_CALLS", "1500"))
AT_ONCE = 8

DEEP: Any = {"x": 1}
for _ in range(90):
    DEEP = {"d": [DEEP]}

WRONG_TYPES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1.5,
    1e308,
    2**63,
    -(2**70),
    "",
    "1",
    [],
    [[]],
    {},
    {"a": 1},
    DEEP,
]
EXTREME: list[Any] = [
    "x" * 100_000,
    "é😀" * 300,
    "\x00",
    "a\nb\r\x1b[31m",
    "../../etc/passwd",
    "'; DROP TABLE blobs; --",
    "%00",
    "\u202e\ufeff",
    "ﬀ" * 64,
    "0" * 64,
    "f" * 8,
    "deadbeef" * 8,
    "WyJ4Iiwx",
    "-",
    "NaN",
    "9" * 400,
    2**31,
    2**53 + 1,
    10**400,
    -(10**400),
    0.1,
    -0.0,
    5e-324,
    ["a"] * 600,
    ["", None, 5],
    [{"op": "add_object"}],
    [{"op": op} for op in ("remove_object", "resolve_inference_conflict", "record_inference", "x")],
    [{"op": "add_object", "identity": {"id": "a", "type": "T", "name": "n"}, "structure": DEEP}],
    [{"op": "update_object", "object_id": "sun", "structure_patch": {"valid_until": 5, "participants": {}}}],
    [
        {
            "op": "add_object",
            "identity": {"id": "s", "type": "InferenceStep", "name": "n"},
            "structure": {"premises": 5},
        }
    ],
    {
        "objects": [
            {
                "identity": {"id": "a", "type": "InferenceStep", "name": "n"},
                "structure": {"conclusion": ["x"]},
            }
        ]
    },
    {"objects": [{"identity": DEEP, "structure": []}], "version": DEEP},
    {"objects": {"identity": 1}},
    {"sun": "branch_a", "": None, "x" * 3000: {"identity": {}}},
    {str(k): k for k in range(2000)},
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    # nothing listens on the discard port, so that no call ends in somebody's model
    settings = {
        "CKS_TOOLSETS": "core,conflicts,documents,agent",
        "CKS_OLLAMA_HOST": "http://127.0.0.1:9",
        "CKS_LLM_PROVIDER": "ollama",
    }
    async with serving(tmp_path_factory.mktemp("hostile") / "cks.db", settings=settings) as agent:
        await agent.ok("evolve_knowledge", operations=[add("sun"), add("earth"), relate("r", "earth", "sun")])
        await agent.ok("evolve_knowledge", operations=[infer("i", ["sun"], "earth", 0.5)])
        yield agent


def plausible(name: str, schema: dict[str, Any]) -> Any:
    """A value of the type that is asked for."""
    if "enum" in schema:
        return schema["enum"][0]
    if name.endswith("session_id"):
        return "main"
    if name == "path":
        return "/a.md"
    if name == "seed_ids":
        return ["sun"]
    kind = schema.get("type")
    return {"string": "sun", "integer": 1, "number": 0.5, "boolean": True, "array": [], "object": {}}.get(
        str(kind), "sun"
    )


def calls(listed: list[Any], chance: random.Random) -> Any:
    """Calls of every tool, first with each argument wrong by itself, then with any mixture, for ever."""
    for tool in listed:
        properties = tool.input_schema.get("properties", {})
        required = {name: plausible(name, properties[name]) for name in tool.input_schema.get("required", [])}
        yield tool, {**required, "no_such_argument": 1}
        for name in required:
            yield tool, {key: value for key, value in required.items() if key != name}
        for name in properties:
            for value in chance.sample(WRONG_TYPES, 4) + chance.sample(EXTREME, 6):
                yield tool, {**required, name: value}
    while True:
        tool = chance.choice(listed)
        names = list(tool.input_schema.get("properties", {}))
        chosen = chance.sample(names, chance.randint(0, len(names)))
        yield tool, {name: chance.choice(WRONG_TYPES + EXTREME) for name in chosen}


def blamed(error: dict[str, Any]) -> str:
    return str(error["details"].get("argument", "")).partition(".")[0].partition("[")[0]


def judge(tool: str, arguments: dict[str, Any], known: set[str], result: CallToolResult) -> str:
    """The code of the answer, "ok" for a result; fails for any answer that is neither of the two."""
    error = dict(result.structured_content or {})
    if not result.is_error:
        return "ok"
    shown = (tool, {key: str(value)[:100] for key, value in arguments.items()}, str(error)[:900])
    assert error["code"] != "internal_error", shown
    assert error["message"] and error["hint"], shown
    if error["code"] == "invalid_parameter":
        assert blamed(error) in {*arguments, *known}, shown
    return str(error["code"])


async def test_no_argument_is_answered_by_an_internal_error(agent: Agent) -> None:
    listed = (await agent.client.list_tools()).tools
    stream = calls(listed, random.Random(20))
    left = CALLS
    codes: dict[str, int] = {}

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            tool, arguments = next(stream)
            with anyio.fail_after(PATIENCE_S):
                result = await agent.client.call_tool(tool.name, arguments)
            code = judge(tool.name, arguments, set(tool.input_schema["properties"]), result)
            codes[code] = codes.get(code, 0) + 1

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(work)
    assert codes["invalid_parameter"] > CALLS / 3 and codes["ok"] > 0, codes
    assert (await agent.ok("explain_knowledge"))["counts"]["objects"] >= 4


@pytest.mark.parametrize(
    "name", ["", "evolve", "Evolve_knowledge", "x" * 5000, "\u0000", "list_sessions "], ids=ascii
)
async def test_a_tool_that_does_not_exist(agent: Agent, name: str) -> None:
    error = await agent.refused(name, "invalid_parameter")
    assert error["details"] == {"argument": "name"} and len(error["message"]) < 300
