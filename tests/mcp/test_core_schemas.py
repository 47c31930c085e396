"""What tools/list shows: the golden file, its size, and what every entry must have."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from serving import Agent, serving

GOLDEN = Path(__file__).parents[1] / "golden"
LIST_BYTES_MAX = 40_000

CORE = (
    "evolve_knowledge",
    "validate_knowledge",
    "explain_knowledge",
    "query_subgraph",
    "search_knowledge",
    "list_sessions",
    "list_versions",
    "compare_versions",
    "explain_diff",
    "create_branch",
    "merge_branch",
    "revert_version",
    "close_session",
    "export_session",
)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["auto", "legacy"])
async def agent(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Agent]:
    async with serving(tmp_path_factory.mktemp("schemas") / "cks.db", mode=request.param) as agent:
        yield agent


@pytest.fixture(scope="module")
async def listed(agent: Agent) -> list[dict[str, Any]]:
    found = (await agent.client.list_tools()).tools
    return [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in found]


def renewal() -> ModuleType:
    spec = importlib.util.spec_from_file_location("renew", GOLDEN / "renew.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_list_is_the_golden_one(listed: list[dict[str, Any]]) -> None:
    kept = (GOLDEN / "tools.json").read_text(encoding="utf-8")
    assert renewal().spelled(listed) == kept, "run: python tests/golden/renew.py, and look at the difference"


async def test_the_list_is_small(listed: list[dict[str, Any]]) -> None:
    assert len(json.dumps({"tools": listed}, ensure_ascii=False).encode()) < LIST_BYTES_MAX


async def test_every_tool_has_schemas_annotations_and_a_description(listed: list[dict[str, Any]]) -> None:
    assert set(CORE) <= {tool["name"] for tool in listed}
    for tool in listed:
        assert tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object", tool["name"]
        assert tool["inputSchema"]["additionalProperties"] is False
        assert set(tool["annotations"]) == {
            "readOnlyHint",
            "destructiveHint",
            "idempotentHint",
            "openWorldHint",
        }
        assert 40 < len(tool["description"]) < 600, tool["name"]


async def test_annotations_say_who_writes(listed: list[dict[str, Any]]) -> None:
    hints = {tool["name"]: tool["annotations"] for tool in listed}
    reading = {name for name, hint in hints.items() if hint["readOnlyHint"]}
    writing = {"evolve_knowledge", "create_branch", "merge_branch", "revert_version", "close_session"}
    assert set(CORE) - reading == writing
    for name in ("list_gossip_conflicts", "list_inference_conflicts"):
        hint = hints[name]
        assert (hint["readOnlyHint"], hint["destructiveHint"], hint["idempotentHint"]) == (
            False,
            False,
            False,
        )
        (description,) = [tool["description"] for tool in listed if tool["name"] == name]
        assert description.startswith("Takes notices") and "off the queue" in description.partition(".")[0]


async def test_lists_have_one_page(agent: Agent) -> None:
    for uri in ("gossip", "inference", "temporal", "provenance"):
        assert f"cks://conflicts/{uri}" in [
            str(r.uri) for r in (await agent.client.list_resources()).resources
        ]
    templates = [t.uri_template for t in (await agent.client.list_resource_templates()).resource_templates]
    assert set(templates) == {"cks://sessions/{id}", "doc://{+path}"}
