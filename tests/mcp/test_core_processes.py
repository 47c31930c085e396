"""Several real servers on one database: edits at the same time, restarts, and one that is killed while it writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.exceptions import MCPError
from serving import PROGRAM, Agent, add, environment, ids, serving, update
from wire import Wire

EDITS = 25


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Agent, Agent]]:
    db_path = tmp_path_factory.mktemp("pair") / "cks.db"
    async with serving(db_path, name="ada") as ada, serving(db_path, name="ben", mode="legacy") as ben:
        yield ada, ben


async def test_each_sees_at_once_what_the_other_did(pair: tuple[Agent, Agent]) -> None:
    ada, ben = pair
    name = await ada.session(add("a", x=1))
    for number in range(10):
        one, other = pair if number % 2 else pair[::-1]
        moved = await one.evolve(name, update("a", x=number + 2))
        assert await other.head(name) == moved["version_id"]
        assert (await other.object(name, "a"))["structure"] == {"x": number + 2}
    await ben.ok("close_session", session_id=name)
    await ada.refused("evolve_knowledge", "session_closed", session_id=name, operations=[add("b")])


async def test_edits_at_the_same_time_all_end_in_the_session(pair: tuple[Agent, Agent]) -> None:
    name = await pair[0].session(add("shared"))

    async def edit(agent: Agent, who: str) -> None:
        for number in range(EDITS):
            await agent.evolve(name, add(f"{who}{number}"), update("shared", **{f"{who}{number}": number}))

    async with anyio.create_task_group() as tasks:
        for agent, who in zip((*pair, *pair), "abcd", strict=True):
            tasks.start_soon(edit, agent, who)
    wanted = {f"{who}{number}" for who in "abcd" for number in range(EDITS)}
    assert set(ids((await pair[1].export(name))["objects"])) == {"shared", *wanted}
    assert set((await pair[0].object(name, "shared"))["structure"]) == wanted
    versions = await pair[0].pages("list_versions", "versions", session_id=name, limit=500)
    assert len(versions) == 2 + 4 * EDITS, "every edit is a version, and a lost race leaves none"
    authors = {version["author"].partition("@")[0] for version in versions}
    assert {"ada", "ben"} <= authors


async def test_of_writers_that_expect_one_head_one_wins(pair: tuple[Agent, Agent]) -> None:
    name = await pair[0].session(add("counter", n=0))
    lost = 0

    async def count(agent: Agent) -> None:
        nonlocal lost
        for _ in range(10):
            while True:
                told = await agent.ok("explain_knowledge", session_id=name, object_id="counter")
                value = told["object"]["structure"]["n"] + 1
                result = await agent.answer(
                    "evolve_knowledge",
                    {
                        "session_id": name,
                        "operations": [update("counter", n=value)],
                        "expected_head": told["head"]["version_id"],
                    },
                )
                if not result.is_error:
                    break
                assert result.structured_content is not None
                assert result.structured_content["code"] == "head_moved"
                lost += 1

    async with anyio.create_task_group() as tasks:
        for agent in pair:
            tasks.start_soon(count, agent)
    assert (await pair[0].object(name, "counter"))["structure"] == {"n": 20}


async def test_merges_and_edits_of_one_target_at_the_same_time(pair: tuple[Agent, Agent]) -> None:
    ada, ben = pair
    name = await ada.session(add("base"))
    branches = [(await ada.ok("create_branch", session_id=name))["session_id"] for _ in range(8)]
    for number, branch in enumerate(branches):
        await ben.evolve(branch, add(f"branch{number}"))

    async def merge(agent: Agent, sources: list[str]) -> None:
        for source in sources:
            told = await agent.ok("merge_branch", target_session_id=name, source_session_id=source)
            assert told["merged"] is True
            await agent.evolve(name, update("base", **{source: True}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(merge, ada, branches[:5])
        tasks.start_soon(merge, ben, branches[3:])
    assert set(ids((await ada.export(name))["objects"])) == {"base", *(f"branch{k}" for k in range(8))}
    assert set((await ben.object(name, "base"))["structure"]) == set(branches)


async def test_one_is_killed_while_it_writes_and_the_other_goes_on(tmp_path: Path) -> None:
    db_path = tmp_path / "cks.db"
    acknowledged: set[str] = set()
    async with serving(db_path) as survivor:
        for round_ in range(2):
            with Wire([PROGRAM], environment=environment(db_path)) as wire:
                wire.start()
                names = {}
                for number in range(60):
                    id = f"r{round_}-{number}"
                    arguments = {"operations": [add(id)]}
                    sent = wire.request("tools/call", {"name": "evolve_knowledge", "arguments": arguments})
                    names[sent] = id
                await survivor.ok("evolve_knowledge", operations=[add(f"survivor-{round_}")])
                for _ in range(5 + 20 * round_):
                    message = wire.read()
                    assert message["result"]["isError"] is False
                    acknowledged.add(names[message["id"]])
                wire.process.kill()
                wire.process.wait(10)
            await survivor.ok("evolve_knowledge", operations=[add(f"after-{round_}")])
            acknowledged |= {f"survivor-{round_}", f"after-{round_}"}
            kept = set(ids((await survivor.ok("export_session"))["objects"]))
            assert acknowledged <= kept
        told = await survivor.ok("validate_knowledge")
        assert told["valid"] is True
    async with serving(db_path, mode="legacy") as later:
        assert acknowledged <= set(ids((await later.ok("export_session"))["objects"]))
        await later.ok("evolve_knowledge", operations=[add("later")])


async def test_everything_outlives_a_restart(tmp_path: Path) -> None:
    db_path = tmp_path / "cks.db"
    reads: list[tuple[str, dict[str, Any]]] = [
        ("explain_knowledge", {}),
        ("explain_knowledge", {"object_id": "a"}),
        ("export_session", {}),
        ("list_versions", {}),
        ("list_sessions", {}),
        ("compare_versions", {}),
        ("search_knowledge", {"query": "telescope"}),
        ("query_subgraph", {"seed_ids": ["a"]}),
        ("list_inference_conflicts", {"state": "closed"}),
    ]
    async with serving(db_path) as agent:
        await agent.ok(
            "evolve_knowledge",
            operations=[add("b", z=1, a=2, note="telescope"), add("a", y={"d": 1, "c": 2})],
        )
        branch = (await agent.ok("create_branch", title="A title"))["session_id"]
        await agent.evolve(branch, update("a", x=1))
        await agent.ok("merge_branch", target_session_id="main", source_session_id=branch)
        await agent.ok("close_session", session_id=branch)
        replica = (await agent.ok("runtime_status"))["replica_id"]
        before = [(await agent.answer(tool, arguments)).structured_content for tool, arguments in reads]
    async with serving(db_path) as agent:
        after = [(await agent.answer(tool, arguments)).structured_content for tool, arguments in reads]
        for (tool, _), old, new in zip(reads, before, after, strict=True):
            if tool == "list_inference_conflicts":
                assert old is not None and new is not None
                old, new = {**old, "last_sweep_at": ""}, {**new, "last_sweep_at": ""}
            assert old == new, tool
        assert (await agent.ok("runtime_status"))["replica_id"] == replica


async def test_servers_started_at_once_are_one_replica(tmp_path: Path) -> None:
    db_path = tmp_path / "new" / "cks.db"
    wires = [Wire([PROGRAM], environment=environment(db_path)) for _ in range(3)]
    try:
        replicas = set()
        for number, wire in enumerate(wires):
            wire.start()
            arguments = {"operations": [add(f"o{number}")]}
            assert wire.call("evolve_knowledge", arguments)["isError"] is False
            replicas.add(wire.call("runtime_status")["structuredContent"]["replica_id"])
        assert len(replicas) == 1
        found = wires[0].call("explain_knowledge")["structuredContent"]
        assert found["counts"]["objects"] == len(wires)
    finally:
        for wire in wires:
            wire.close()


async def test_a_client_that_is_refused_by_the_protocol_can_go_on(pair: tuple[Agent, Agent]) -> None:
    for agent in pair:
        with pytest.raises(MCPError):
            await agent.client.read_resource("cks://nowhere")
        assert (await agent.ok("list_sessions"))["sessions"]
