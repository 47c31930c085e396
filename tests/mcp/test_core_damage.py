"""A damaged value in the database is an error of the calls that need it, and of no others (promise 9)."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from serving import Agent, add, relate, serving, update


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    """A server on a database in which one object and the whole graph of one session are damaged."""
    db_path = tmp_path_factory.mktemp("damage") / "cks.db"
    async with serving(db_path) as agent:
        objects = [add(f"o{k}", note=f"marker-{k:03}-") for k in range(100)]
        await agent.ok("evolve_knowledge", operations=[*objects, relate("r", "o1", "o2")])
        await agent.evolve("bad", add("only-in-bad"), create=True)
        await agent.evolve("good", add("fine"), create=True)
    assert spoil(db_path, "marker-050-") == spoil(db_path, '{"entries":{"only-in-bad"') == 1
    async with serving(db_path, settings={"CKS_LOG_FORMAT": "json"}) as agent:
        yield agent


def spoil(db_path: Path, containing: str) -> int:
    """Change one letter of every blob that has this text."""
    altered = containing[:-1] + ("x" if containing[-1] != "x" else "y")
    with closing(sqlite3.connect(db_path)) as conn:
        count = conn.execute(
            "UPDATE blobs SET data = CAST(replace(CAST(data AS TEXT), ?, ?) AS BLOB) WHERE instr(data, ?)",
            (containing, altered, containing.encode()),
        ).rowcount
        conn.commit()
    return count


async def internal(agent: Agent, tool: str, **arguments: object) -> str:
    error = await agent.refused(tool, "internal_error", **arguments)
    assert error["details"]["error_id"] and "Traceback" not in str(error)
    return str(error)


async def test_a_damaged_object_is_named_and_the_rest_stays_usable(agent: Agent) -> None:
    shown = await internal(agent, "explain_knowledge", object_id="o50")
    assert "o50" in shown
    assert (await agent.object("main", "o51"))["structure"] == {"note": "marker-051-"}
    assert (await agent.ok("query_subgraph", seed_ids=["o1"]))["relations"]
    await agent.ok("evolve_knowledge", operations=[update("o1", note="changed"), add("new")])
    assert (await agent.ok("search_knowledge", query="changed"))["hits"]
    assert len((await agent.ok("list_versions"))["versions"]) == 3
    await internal(agent, "export_session")
    branch = (await agent.ok("create_branch"))["session_id"]
    await agent.evolve(branch, add("on-branch"))
    assert (await agent.ok("merge_branch", target_session_id="main", source_session_id=branch))["merged"]
    told = await agent.ok(
        "evolve_knowledge",
        knowledge={
            "objects": [
                {"identity": {"id": "o50", "type": "Body", "name": "o50"}, "structure": {"note": "again"}}
            ]
        },
    )
    assert told["changed"]["added"]["ids"] == ["o50"], "what it was cannot be read"
    assert (await agent.object("main", "o50"))["structure"] == {"note": "again"}
    await agent.ok("export_session")


async def test_a_damaged_graph_spoils_no_other_session(agent: Agent) -> None:
    await internal(agent, "explain_knowledge", session_id="bad")
    await internal(agent, "evolve_knowledge", session_id="bad", operations=[add("x")])
    listed = {row["session_id"]: row for row in (await agent.ok("list_sessions"))["sessions"]}
    assert listed["good"]["objects"] == 1 and listed["bad"]["objects"] is None
    versions = (await agent.ok("list_versions", session_id="bad"))["versions"]
    assert versions[0]["counts"] == {"objects": None} and versions[1]["counts"] == {"objects": 0}
    await agent.evolve("good", add("more"))
    first = versions[1]["version_id"]
    told = await agent.ok("create_branch", session_id="bad", version_id=first)
    await agent.evolve(told["session_id"], add("saved"))
