"""validate_knowledge writes nothing and finds everything; revert_version and close_session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from serving import Agent, add, infer, relate, remove, serving, update, whole

OLD = "2020-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    async with serving(tmp_path_factory.mktemp("validate") / "cks.db") as agent:
        yield agent


async def test_a_graph_of_the_callers_is_judged_as_if_it_were_new(agent: Agent) -> None:
    async def found(*objects: Any, **more: Any) -> tuple[bool, list[str]]:
        told = await agent.ok("validate_knowledge", knowledge={"objects": [*objects]}, **more)
        assert told["diagnostics_total"] == len(told["diagnostics"]) and "version_id" not in told
        return told["valid"], [diagnostic["code"] for diagnostic in told["diagnostics"]]

    assert await found() == (True, [])
    assert await found(whole("a"), whole("b")) == (True, [])
    assert await found(whole("a"), whole("a")) == (False, ["CKS-STRUCT-UNIQUE-IDENTITY"])
    link = whole("r", "Relation", participants=["a", "b"], relation_type="x")
    assert await found(whole("a"), link) == (False, ["CKS-STRUCT-DANGLING-REF"])
    assert await found({"identity": 5}) == (False, ["CKS-STRUCT-FORMAT"])
    assert await found(whole("a", valid_until="tomorrow")) == (False, ["CKS-EXT-TEMPORAL-VALIDITY"])
    late = whole("a", valid_until=OLD)
    assert await found(late) == (True, [])
    assert await found(late, extensions=["temporal"]) == (True, ["CKS-EXT-TEMPORAL-VALIDITY"])
    record = whole("v", "VerificationRecord", url="http://a", subject_id="a", signature="00", key_id="x")
    valid, codes = await found(whole("a"), record)
    assert not valid and "CKS-MCP-UNVERIFIED-PROVENANCE" in codes
    told = await agent.ok("validate_knowledge", knowledge={"objects": 5, "version": "9"})
    assert told["valid"] is False and {d["location"] for d in told["diagnostics"]} == {"objects", "version"}


async def test_it_never_writes(agent: Agent) -> None:
    name = await agent.session(add("a", valid_until=OLD), add("b"), infer("i", ["a"], "b", 0.1))
    await agent.evolve(name, infer("j", ["a"], "b", 0.2))
    await agent.until("explain_knowledge", lambda told: len(told["open_conflicts"]) == 2, session_id=name)
    before = await agent.ok("runtime_status")
    everything = ["inference", "temporal", "provenance", "contradiction"]
    for arguments in (
        {},
        {"session_id": name},
        {"session_id": name, "extensions": everything},
        {"knowledge": {"objects": [whole("x")]}, "extensions": everything},
        {"knowledge": {"objects": [whole("x"), whole("x")]}},
    ):
        await agent.ok("validate_knowledge", **arguments)
    after = await agent.ok("runtime_status")
    assert after["journal"]["newest"] == before["journal"]["newest"]
    told = await agent.ok("validate_knowledge", session_id=name, extensions=everything)
    assert told["valid"] is True and told["version_id"] == await agent.head(name)
    assert [d["code"] for d in told["diagnostics"]] == [
        "CKS-EXT-TEMPORAL-VALIDITY",
        "CKS-EXT-INFERENCE-CONFIDENCE-CONFLICT",
    ]
    await agent.refused("validate_knowledge", "session_not_found", session_id="nobody")
    await agent.refused("validate_knowledge", "invalid_parameter", session_id=name, knowledge={"objects": []})
    error = await agent.refused("validate_knowledge", "invalid_parameter", extensions=["inference", "x"])
    assert error["details"]["argument"] == "extensions.1"


async def test_many_findings_come_in_pages(agent: Agent) -> None:
    name = await agent.session(*(add(f"o{k:03}-{'long' * 60}", valid_until=OLD) for k in range(120)))
    arguments = {"session_id": name, "extensions": ["temporal"]}
    first = await agent.ok("validate_knowledge", **arguments)
    assert first["diagnostics_total"] == 120 > len(first["diagnostics"])
    found = await agent.pages("validate_knowledge", "diagnostics", **arguments)
    assert [d["location"][:4] for d in found] == [f"o{k:03}" for k in range(120)]
    found = await agent.pages("validate_knowledge", "diagnostics", **arguments, limit=500)
    assert len(found) == 120


async def test_one_finding_about_very_many_objects_still_fits(agent: Agent) -> None:
    claim, fact = add("claim"), add("fact")
    steps = [infer(f"step-{k:04}-{'x' * 60}", ["fact"], "claim", k / 2000) for k in range(1500)]
    name = await agent.session(claim, fact, *steps)
    told = await agent.ok("validate_knowledge", session_id=name, extensions=["inference"])
    (found,) = told["diagnostics"]
    assert found["truncated"] is True and found["step_ids"][0].startswith("step-0000")
    explained = await agent.ok("explain_knowledge", session_id=name, object_id="claim")
    assert explained["active_total"] == 1500 > len(explained["active_steps"]) > 0
    assert explained["premise_chain"]["truncated"] is True
    told = await agent.until("explain_knowledge", lambda told: told["open_conflicts"] != [], session_id=name)
    (conflict,) = told["open_conflicts"]
    assert conflict["object_count"] == 1501 and conflict["object_ids"][0] == "claim"
    queued = await agent.ok("list_inference_conflicts", session_id=name, peek=True)
    assert queued["conflicts"][0]["object_ids_total"] == 1501
    await agent.resource("cks://conflicts/inference")
    await agent.resource(f"cks://sessions/{name}")


async def test_revert_brings_back_a_content_and_keeps_the_history(agent: Agent) -> None:
    name = await agent.session(add("a", x=1), add("b"), relate("r", "a", "b"))
    wanted = await agent.head(name)
    content = await agent.export(name)
    await agent.evolve(name, update("a", x=2), remove("b"), add("c"))
    told = await agent.ok("revert_version", session_id=name, version_id=wanted[:10].upper())
    assert told["session_id"] == name and told["no_op"] is False and told["state"] == "open"
    assert told["changed"]["added"]["ids"] == ["b", "r"] and told["changed"]["removed"]["ids"] == ["c"]
    assert await agent.export(name) == content and told["version_id"] != wanted
    versions = (await agent.ok("list_versions", session_id=name))["versions"]
    assert len(versions) == 4 and versions[0]["message"] == f"Revert to {wanted}"
    assert (await agent.ok("revert_version", session_id=name, version_id=wanted))["no_op"] is True
    await agent.refused("revert_version", "version_not_found", session_id=name, version_id="0" * 64)
    foreign = await agent.head(await agent.session(add("elsewhere")))
    error = await agent.refused("revert_version", "invalid_parameter", session_id=name, version_id=foreign)
    assert error["details"] == {"argument": "version_id"}
    await agent.refused("revert_version", "session_not_found", session_id="nobody", version_id=wanted)
    for wrong in ("", "abc", "g" * 64, name):
        error = await agent.refused("revert_version", "invalid_parameter", session_id=name, version_id=wrong)
        assert error["details"]["argument"] == "version_id"


async def test_a_closed_session_is_read_but_not_edited(agent: Agent) -> None:
    name = await agent.session(add("a"))
    before = await agent.head(name)
    closed = await agent.ok("close_session", session_id=name)
    assert closed["state"] == "closed" and closed["no_op"] is False and closed["version_id"] != before
    assert (await agent.ok("close_session", session_id=name))["no_op"] is True
    for tool, arguments in (
        ("evolve_knowledge", {"session_id": name, "operations": [add("b")]}),
        ("evolve_knowledge", {"session_id": name, "operations": []}),
        ("evolve_knowledge", {"session_id": name, "knowledge": {"objects": [whole("b")]}}),
        ("revert_version", {"session_id": name, "version_id": before}),
    ):
        error = await agent.refused(tool, "session_closed", **arguments)
        assert name in error["message"] and "reopen" in error["hint"]
    told = await agent.ok("explain_knowledge", session_id=name)
    assert told["state"] == "closed" and told["head"]["closed"] is True
    listed = {s["session_id"]: s for s in await agent.pages("list_sessions", "sessions", state="closed")}
    assert listed[name]["state"] == "closed"
    assert name not in [s["session_id"] for s in await agent.pages("list_sessions", "sessions", state="open")]
    opened = await agent.ok("close_session", session_id=name, reopen=True)
    assert opened["state"] == "open" and (await agent.evolve(name, add("b")))["no_op"] is False
    await agent.refused("close_session", "session_not_found", session_id="nobody")
    error = await agent.refused("close_session", "invalid_parameter")
    assert error["details"]["argument"] == "session_id"
