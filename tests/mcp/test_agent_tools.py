"""The tools of toolset `agent` and the list of dead letters, called as a client calls them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cks_mcp.calls import ToolContext, Tools
from cks_mcp.services import Services
from cks_mcp.tools.agent import agent
from cks_mcp.tools.dead_letters import dead_letters
from cks_runtime.config import RuntimeConfig
from cks_runtime.model.times import parse_rfc3339
from cks_runtime.runtime import Runtime
from cks_runtime.store import outbox as rows
from cks_runtime.store.outbox import TASK_TYPES
from sweepers import InferenceStalenessSweeper, TemporalStalenessSweeper

NOW_MS = 1_767_225_600_000
HOLDER_TOOLS = ("renew_conflict_task", "complete_conflict_task")
GIVE_UP_TOOLS = ("fail_conflict_task", "dead_letter_conflict_task")
TOOLS = Tools([agent, dead_letters])
SCHEMAS = {tool.name: tool.output_schema for tool in TOOLS.listed()}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Caller:
    """Calls tools on one runtime and checks every answer against the schema the tool advertises."""

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt

    async def ok(self, name: str, **arguments: Any) -> dict[str, Any]:
        answer = await TOOLS.call(name, arguments, ToolContext(app=Services(self.rt), client_name="tester"))
        found: dict[str, Any] = answer["structuredContent"]
        assert not answer["isError"], found
        jsonschema.validate(found, SCHEMAS[name] or {})
        return found

    async def code(self, name: str, **arguments: Any) -> str:
        answer = await TOOLS.call(name, arguments, ToolContext(app=Services(self.rt)))
        assert answer["isError"], answer["structuredContent"]
        assert set(answer["structuredContent"]) == {"code", "message", "hint", "details"}
        return str(answer["structuredContent"]["code"])

    async def claim(self, **arguments: Any) -> dict[str, Any]:
        found = (await self.ok("claim_conflict_task", **arguments))["task"]
        assert found is not None
        return dict(found)

    async def put(
        self, name: str, task_type: str = TASK_TYPES[0], payload: Any = None, session: str = "main"
    ) -> None:
        async with self.rt.store.unit() as unit:
            await rows.put_task(
                unit, name, task_type, session, payload or {"name": name}, f"key-{name}", NOW_MS
            )

    async def kill(self, name: str) -> None:
        held = await self.claim()
        assert held["task_id"] == name
        await self.ok(
            "dead_letter_conflict_task", task_id=name, claim_token=held["claim_token"], error="no way"
        )


@pytest.fixture
async def call(tmp_path: Path) -> AsyncIterator[Caller]:
    config = RuntimeConfig(
        db_path=str(tmp_path / "cks.db"), sqlite_synchronous="NORMAL", clock=lambda: NOW_MS
    )
    async with Runtime.open(config) as rt:
        yield Caller(rt)


async def test_a_claim_has_what_the_contract_names(call: Caller) -> None:
    assert await call.ok("claim_conflict_task") == {"supported": True, "task": None}
    await call.put("t", payload={"record_id": "r", "diagnostics": [{"code": "X"}]}, session="s")
    task = await call.claim(task_type="gossip_conflict", session_id="s")
    token = task.pop("claim_token")
    assert isinstance(token, str) and len(token) >= 16
    assert task == {
        "task_id": "t",
        "task_type": "gossip_conflict",
        "session_id": "s",
        "payload": {"record_id": "r", "diagnostics": [{"code": "X"}]},
        "attempts": 1,
        "lease_expires_at": "2026-01-01T00:02:00Z",
    }
    assert await call.ok("claim_conflict_task") == {"supported": True, "task": None}


async def test_claims_by_type_and_session(call: Caller) -> None:
    await call.put("a", "temporal_conflict", session="one")
    await call.put("b", "inference_conflict", session="two")
    assert (await call.ok("claim_conflict_task", task_type="crdt_fork"))["task"] is None
    assert (await call.ok("claim_conflict_task", session_id="three"))["task"] is None
    assert (await call.claim(session_id="two"))["task_id"] == "b"
    assert (await call.claim(task_type="temporal_conflict"))["task_id"] == "a"
    for wrong in ({"task_type": "licence"}, {"task_type": 7}, {"session_id": "no/such"}, {"kind": "x"}):
        assert await call.code("claim_conflict_task", **wrong) == "invalid_parameter"


async def test_renewing_and_completing(call: Caller) -> None:
    await call.put("t")
    task = await call.claim()
    holder = {"task_id": "t", "claim_token": task["claim_token"]}
    renewed = await call.ok("renew_conflict_task", **holder)
    assert renewed == {"supported": True, "task_id": "t", "lease_expires_at": "2026-01-01T00:02:00Z"}
    for name in (*HOLDER_TOOLS, *GIVE_UP_TOOLS):
        more = {"error": "no"} if name in GIVE_UP_TOOLS else {}
        assert await call.code(name, task_id="t", claim_token="wrong", **more) == "stale_claim"
        assert await call.code(name, task_id="nobody", claim_token="wrong", **more) == "task_not_found"
        assert await call.code(name, task_id="t", **more) == "invalid_parameter"
    assert await call.ok("complete_conflict_task", **holder) == {
        "supported": True,
        "task_id": "t",
        "completed": True,
    }
    assert (await call.ok("complete_conflict_task", **holder))["completed"] is True
    assert await call.code("renew_conflict_task", **holder) == "stale_claim"
    assert await call.code("retry_dead_letter", task_id="t") == "task_not_found"


async def test_failing_until_dead_and_back(call: Caller) -> None:
    await call.put("t")
    for attempt in range(1, 6):
        async with call.rt.store.unit() as unit:
            await unit.execute("UPDATE cks_outbox_tasks SET next_retry_at = 0")
        task = await call.claim()
        assert task["attempts"] == attempt
        failed = await call.ok(
            "fail_conflict_task", task_id="t", claim_token=task["claim_token"], error=f"no {attempt}"
        )
        assert failed["attempts"] == attempt
        if attempt < 5:
            delay_ms = parse_rfc3339(failed["next_retry_at"]) - NOW_MS
            assert failed["status"] == "PENDING" and 2**attempt * 1000 <= delay_ms <= 2 * 2**attempt * 1000
    assert failed == {
        "supported": True,
        "task_id": "t",
        "status": "DEAD",
        "attempts": 5,
        "dead_at": "2026-01-01T00:00:00Z",
    }
    listed = await call.ok("list_dead_lettered_conflicts")
    assert listed == {
        "supported": True,
        "tasks": [
            {
                "task_id": "t",
                "task_type": "gossip_conflict",
                "session_id": "main",
                "payload": {"name": "t"},
                "attempts": 5,
                "last_error": "no 5",
                "created_at": "2026-01-01T00:00:00Z",
                "dead_at": "2026-01-01T00:00:00Z",
                "suggestion": {
                    "tool": "retry_dead_letter",
                    "arguments": {"task_id": "t"},
                    "note": "Mend what last_error tells first.",
                },
            }
        ],
    }
    for _ in range(2):
        back = await call.ok("retry_dead_letter", task_id="t")
        assert (back["status"], back["attempts"]) == ("PENDING", 0)
    assert (await call.claim())["attempts"] == 1
    assert (await call.ok("retry_dead_letter", task_id="t"))["status"] == "IN_PROGRESS"
    assert (await call.ok("list_dead_lettered_conflicts"))["tasks"] == []


STEPS = [
    {"op": "add_object", "identity": {"id": name, "type": "Claim", "name": name}, "structure": {}}
    for name in ("premise", "conclusion")
] + [
    {
        "op": "record_inference",
        "identity": {"id": f"step-{confidence}", "type": "InferenceStep", "name": "step"},
        "premises": ["premise"],
        "conclusion": "conclusion",
        "operator": "deductive",
        "confidence": confidence,
        "justification": "because",
        "alternatives_considered": [],
    }
    for confidence in (0.4, 0.9)
]


async def test_completing_tells_whether_the_conflict_is_still_open(call: Caller) -> None:
    await call.rt.commits.evolve("main", STEPS)
    await InferenceStalenessSweeper(call.rt, None).sweep()
    task = await call.claim(task_type="inference_conflict")
    done = await call.ok("complete_conflict_task", task_id=task["task_id"], claim_token=task["claim_token"])
    assert done["conflict_state"] == "open"


async def test_suggestions_are_calls_that_go_on_with_the_conflict(call: Caller) -> None:
    await call.rt.commits.evolve("main", STEPS)
    await InferenceStalenessSweeper(call.rt, None).sweep()
    old = {
        "op": "add_object",
        "identity": {"id": "offer", "type": "Fact", "name": "offer"},
        "structure": {"valid_until": "2020-01-01T00:00:00Z"},
    }
    await call.rt.commits.evolve("main", [old])
    await TemporalStalenessSweeper(call.rt, None).sweep()
    stale = {"code": "CKS-EXT-STALE-PREMISE", "premise_id": "p", "location": "s"}
    expired = {
        "code": "CKS-EXT-PROVENANCE-EXPIRED",
        "record_id": "rec",
        "subject_id": "sub",
        "source_url": "http://x/",
    }
    await call.put("gossip", "gossip_conflict", {"source_session_id": "main@abc"})
    await call.put("stale", "inference_conflict", {"diagnostics": [stale, stale]})
    await call.put("expired", "provenance_conflict", {"diagnostics": [expired]})
    await call.put("fork", "crdt_fork", {"key": "k"})
    await call.put("enrich", "enrichment_request", {"object_id": "o"})
    await call.put("odd", "inference_conflict", {"diagnostics": "nonsense"})
    while (found := await call.ok("claim_conflict_task"))["task"] is not None:
        task = found["task"]
        await call.ok(
            "dead_letter_conflict_task", task_id=task["task_id"], claim_token=task["claim_token"], error="no"
        )
    listed = await call.ok("list_dead_lettered_conflicts")
    shown = {
        (task["task_id"] if not task["task_id"].startswith("task-") else task["task_type"]): task[
            "suggestion"
        ]
        for task in listed["tasks"]
    }
    calls = {name: (entry["tool"], entry["arguments"]) for name, entry in shown.items()}
    assert calls == {
        "inference_conflict": (
            "arbitrate_inference_conflict",
            {"session_id": "main", "conclusion_id": "conclusion"},
        ),
        "temporal_conflict": (
            "resolve_temporal_conflict",
            {"session_id": "main", "object_id": "offer", "action": "bump", "commit": True},
        ),
        "gossip": (
            "merge_branch",
            {"target_session_id": "main", "source_session_id": "main@abc", "dry_run": True},
        ),
        "stale": (
            "arbitrate_inference_conflict",
            {"session_id": "main", "stale_premise_ids": ["p"], "commit": True},
        ),
        "expired": (
            "refresh_verification",
            {
                "session_id": "main",
                "record_id": "rec",
                "subject_id": "sub",
                "source_url": "http://x/",
                "commit": True,
            },
        ),
        "fork": ("get_pointer", {"key": "k"}),
        "enrich": ("retry_dead_letter", {"task_id": "enrich"}),
        "odd": ("retry_dead_letter", {"task_id": "odd"}),
    }


async def test_dead_letters_come_in_pages_that_fit_an_answer(call: Caller) -> None:
    for index in range(30):
        await call.put(f"t{index:02}", TASK_TYPES[index % 2], {"text": ["x" * 400] * 40})
        await call.kill(f"t{index:02}")
    found: list[str] = []
    arguments: dict[str, Any] = {"limit": 10, "session_id": "main"}
    pages = 0
    while True:
        page = await call.ok("list_dead_lettered_conflicts", **arguments)
        assert 0 < len(page["tasks"]) <= 10
        assert all(task["payload"]["truncated"] for task in page["tasks"])
        found += [task["task_id"] for task in page["tasks"]]
        pages += 1
        if "next_cursor" not in page:
            break
        arguments["cursor"] = page["next_cursor"]
    assert found == [f"t{index:02}" for index in range(30)] and pages > 3
    by_type = await call.ok("list_dead_lettered_conflicts", task_type=TASK_TYPES[1], limit=2)
    assert [task["task_id"] for task in by_type["tasks"]] == ["t01", "t03"]
    assert (await call.ok("list_dead_lettered_conflicts", session_id="other"))["tasks"] == []
    for wrong in (
        {"cursor": "x"},
        {"cursor": "WyJkZWFkLWxldHRlcnMiLFsxXV0"},
        {"limit": 0},
        {"task_type": "x"},
    ):
        assert await call.code("list_dead_lettered_conflicts", **wrong) == "invalid_parameter"


async def test_without_an_outbox_every_tool_says_so() -> None:
    async with Runtime.open(RuntimeConfig(db_path=":memory:")) as rt:
        call = Caller(rt)
        holder = {"task_id": "t", "claim_token": "x"}
        for name in HOLDER_TOOLS:
            assert await call.ok(name, **holder) == {"supported": False}
        for name in GIVE_UP_TOOLS:
            assert await call.ok(name, **holder, error="no") == {"supported": False}
        assert await call.ok("claim_conflict_task") == {"supported": False}
        assert await call.ok("retry_dead_letter", task_id="t") == {"supported": False}
        assert await call.ok("list_dead_lettered_conflicts") == {"supported": False}


def test_what_the_tools_say_about_themselves() -> None:
    listed = {tool.name: tool for tool in TOOLS.listed()}
    assert set(listed) == {
        "claim_conflict_task",
        "retry_dead_letter",
        "list_dead_lettered_conflicts",
        *HOLDER_TOOLS,
        *GIVE_UP_TOOLS,
    }
    for tool in listed.values():
        assert tool.annotations is not None and tool.description
        assert tool.annotations.read_only_hint is (tool.name == "list_dead_lettered_conflicts")
        assert tool.annotations.destructive_hint is False
    assert (
        listed["list_dead_lettered_conflicts"].name in dead_letters.tools and dead_letters.name == "conflicts"
    )
