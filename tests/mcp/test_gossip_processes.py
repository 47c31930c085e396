"""Real servers that gossip over loopback: what replicates, what merges, what becomes a conflict and how it closes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from serving import Agent, Json, add, remove, serving, update

SECRET = "a-gossip-secret-of-more-than-32-bytes"
PATIENCE_S = 30.0


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class Team:
    """Replicas that know each other; each can be stopped and started again."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.ports = free_ports(count)

    def lose(self, number: int) -> None:
        """Remove a stopped replica's database."""
        for left in self.folder.glob(f"{number}.db*"):
            left.unlink()

    def replica(self, number: int, **settings: str) -> Any:
        """The server of one replica, as an async context manager."""
        peers = ",".join(f"http://127.0.0.1:{p}" for n, p in enumerate(self.ports) if n != number)
        chosen = {
            "CKS_GOSSIP_ENABLED": "true",
            "CKS_GOSSIP_PEERS": peers,
            "CKS_GOSSIP_PORT": str(self.ports[number]),
            "CKS_GOSSIP_INTERVAL_S": "0.1",
            "CKS_GOSSIP_SECRET": SECRET,
            **settings,
        }
        return serving(self.folder / f"{number}.db", name=f"agent{number}", settings=chosen)


@asynccontextmanager
async def team(folder: Path, count: int) -> AsyncIterator[tuple[Agent, ...]]:
    async with AsyncExitStack() as stack:
        made = Team(folder, count)
        yield tuple([await stack.enter_async_context(made.replica(n)) for n in range(count)])


async def structure(agent: Agent, session_id: str, object_id: str) -> Json | None:
    """The object's structure; None when it or the session is not there."""
    result = await agent.client.call_tool(
        "explain_knowledge", {"session_id": session_id, "object_id": object_id}
    )
    if result.is_error:
        return None
    found: Json = result.structured_content["object"]["structure"]  # type: ignore[index]
    return found


async def heads(agents: tuple[Agent, ...], session_id: str) -> set[str]:
    found = set()
    for agent in agents:
        result = await agent.client.call_tool("explain_knowledge", {"session_id": session_id})
        found.add("" if result.is_error else result.structured_content["head"]["version_id"])  # type: ignore[index]
    return found


async def reached(look: Callable[[], Awaitable[bool]]) -> None:
    """Wait until it is so."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            if await look():
                return
            await anyio.sleep(0.03)


async def same(agents: tuple[Agent, ...], session_id: str) -> None:
    """Wait until all stand at one head."""

    async def at_one() -> bool:
        found = await heads(agents, session_id)
        return len(found) == 1 and "" not in found

    await reached(at_one)


async def until_structure(agent: Agent, session_id: str, object_id: str, wanted: Json | None) -> None:
    async def has_it() -> bool:
        return await structure(agent, session_id, object_id) == wanted

    await reached(has_it)


async def conflicts(agent: Agent, state: str, count: int) -> list[Json]:
    """The records once there are so many."""
    found = await agent.until("list_gossip_conflicts", lambda page: page["count"] == count, state=state)
    return list(found["conflicts"])


async def diverge(a: Agent, b: Agent, session_id: str = "s") -> tuple[Json, Json]:
    """Both edit one field of `pluto` without knowing of each other; the records on both sides."""
    await a.evolve(session_id, update("pluto", radius=1))
    await b.evolve(session_id, update("pluto", radius=2))
    (on_a,), (on_b,) = await conflicts(a, "open", 1), await conflicts(b, "open", 1)
    return on_a, on_b


async def test_what_one_side_writes_reaches_the_other_again_and_again(tmp_path: Path) -> None:
    async with team(tmp_path, 2) as (a, b):
        await a.evolve("s", add("pluto", radius=0), create=True, title="the outer worlds")
        for radius in (0, 1, 2, 3):
            await a.evolve("s", update("pluto", radius=radius))
            await until_structure(b, "s", "pluto", {"radius": radius})
        await b.evolve("s", update("pluto", moons=5))
        await until_structure(a, "s", "pluto", {"radius": 3, "moons": 5})
        titles = {s["title"] for s in await b.pages("list_sessions", "sessions") if s["session_id"] == "s"}
        assert titles == {"the outer worlds"}
        assert len(await b.pages("list_versions", "versions", session_id="s")) == 6
        assert (await a.ok("list_gossip_conflicts", state="open"))["count"] == 0


async def test_edits_of_different_fields_merge_by_themselves_on_both(tmp_path: Path) -> None:
    async with team(tmp_path, 2) as (a, b):
        await a.evolve("s", add("pluto"), create=True)
        await same((a, b), "s")
        await a.evolve("s", update("pluto", radius=1188.3))
        await b.evolve("s", update("pluto", moons=5))
        await until_structure(a, "s", "pluto", {"radius": 1188.3, "moons": 5})
        await until_structure(b, "s", "pluto", {"radius": 1188.3, "moons": 5})
        await same((a, b), "s")
        assert (await b.ok("list_gossip_conflicts", state="open"))["count"] == 0


async def test_a_conflict_is_one_record_on_both_sides_and_closes_on_both(tmp_path: Path) -> None:
    async with team(tmp_path, 2) as (a, b):
        await a.evolve("s", add("pluto", radius=0), create=True)
        await same((a, b), "s")
        base = await a.head("s")
        on_a, on_b = await diverge(a, b)
        assert on_a["record_id"] == on_b["record_id"]
        assert (
            on_a["conflicts"] == ["pluto"] and on_a["kind"] == "diverged" and on_a["base_version_id"] == base
        )
        line = on_a["source_session_id"]
        assert line == f"s@{on_a['source_replica_id']}"
        assert on_b["source_replica_id"] == (await a.ok("runtime_status"))["replica_id"]
        await check_notices(a, on_a["record_id"])
        await check_line(a, line)
        account = await a.ok("explain_diff", session_id="s", other_session_id=line)
        assert account["base_version_id"] == base and account["modified"]
        tried = await a.ok("resolve_gossip_conflict", target_session_id="s", source_session_id=line)
        assert not tried["merged"] and tried["policy"] and tried["conflicts"][0]["object_id"] == "pluto"
        merged = await a.ok(
            "merge_branch",
            target_session_id="s",
            source_session_id=line,
            base_version_id=base,
            resolutions={"pluto": "branch_b"},
        )
        assert merged["merged"]
        assert (await a.ok("list_gossip_conflicts", state="open"))["count"] == 0  # in the same transaction
        (closed,) = await conflicts(b, "closed", 1)
        assert closed["record_id"] == on_a["record_id"] and closed["closed_how"] == "resolved"
        await same((a, b), "s")
        assert await structure(b, "s", "pluto") == {"radius": 2}
        await a.refused("explain_knowledge", "session_not_found", session_id=line)
        assert await a.pages("list_sessions", "sessions", state="remote") == []


async def check_notices(agent: Agent, record_id: str) -> None:
    """It is peeked, drained once, and still open."""
    peeked = await agent.ok("list_gossip_conflicts", peek=True)
    assert [one["record_id"] for one in peeked["conflicts"]] == [record_id] and peeked["enabled"]
    assert (await agent.ok("list_gossip_conflicts"))["count"] == 1
    assert (await agent.ok("list_gossip_conflicts"))["count"] == 0
    assert (await agent.ok("list_gossip_conflicts", state="open"))["count"] == 1


async def check_line(agent: Agent, line: str) -> None:
    """The other side is read by every read tool, and listed only as remote."""
    assert await structure(agent, line, "pluto") == {"radius": 2}
    assert (await agent.ok("query_subgraph", session_id=line, seed_ids=["pluto"]))["objects"]
    assert (await agent.export(line))["objects"]
    assert (await agent.ok("validate_knowledge", session_id=line))["valid"]
    assert await agent.pages("list_versions", "versions", session_id=line)
    assert (await agent.ok("compare_versions", session_id="s", to=line))["changed"]["updated"]["count"] == 1
    assert (await agent.ok("search_knowledge", session_id=line, query="pluto"))["hits"]
    (listed,) = await agent.pages("list_sessions", "sessions", state="remote")
    assert listed["session_id"] == line and listed["state"] == "remote"
    assert line not in [one["session_id"] for one in await agent.pages("list_sessions", "sessions")]
    await agent.refused("evolve_knowledge", "invalid_parameter", session_id=line, operations=[add("x")])


async def test_newer_edits_refresh_the_record_and_the_line_follows(tmp_path: Path) -> None:
    async with team(tmp_path, 2) as (a, b):
        await a.evolve("s", add("pluto", radius=0), add("charon"), create=True)
        await same((a, b), "s")
        on_a, _ = await diverge(a, b)
        line = on_a["source_session_id"]
        await b.evolve("s", update("pluto", radius=3))
        await until_structure(a, line, "pluto", {"radius": 3})
        (again,) = await conflicts(a, "open", 1)
        assert again["record_id"] == on_a["record_id"] and again["occurrence"] == 1
        assert again["source_head"] == await b.head("s")
        await a.evolve("s", update("charon", radius=1))
        await b.evolve("s", update("charon", radius=2))
        replaced = await a.until(
            "list_gossip_conflicts",
            lambda page: [c["conflicts"] for c in page["conflicts"]] == [["charon", "pluto"]],
            state="open",
        )
        assert replaced["conflicts"][0]["record_id"] != on_a["record_id"]
        (old,) = await conflicts(a, "closed", 1)
        assert old["closed_how"] == "replaced"


async def test_a_branch_of_the_other_side_settles_the_conflict_as_well(tmp_path: Path) -> None:
    async with team(tmp_path, 2) as (a, b):
        await a.evolve("s", add("pluto", radius=0), create=True)
        await same((a, b), "s")
        on_a, _ = await diverge(a, b)
        branch = await a.ok("create_branch", session_id=on_a["source_session_id"], title="theirs")
        assert branch["fork"]["session_id"] == "s"
        merged = await a.ok(
            "merge_branch",
            target_session_id="s",
            source_session_id=branch["session_id"],
            resolutions={"pluto": "branch_a"},
        )
        assert merged["merged"]
        await conflicts(a, "closed", 1)
        await conflicts(b, "closed", 1)
        await same((a, b), "s")


async def test_what_is_removed_stays_removed(tmp_path: Path) -> None:
    async with team(tmp_path, 2) as (a, b):
        await a.evolve("s", add("pluto"), add("charon"), create=True)
        await same((a, b), "s")
        await a.evolve("s", remove("pluto"))
        await b.evolve("s", update("charon", radius=606))
        await same((a, b), "s")
        await until_structure(b, "s", "pluto", None)
        await a.evolve("s", update("charon", moons=0))
        await same((a, b), "s")
        assert await structure(a, "s", "pluto") is None and await structure(b, "s", "pluto") is None


async def test_closing_replicates_and_a_closed_session_still_settles(tmp_path: Path) -> None:
    async with team(tmp_path, 2) as (a, b):
        await a.evolve("s", add("pluto", radius=0), create=True)
        await same((a, b), "s")
        on_a, _ = await diverge(a, b)
        await a.ok("close_session", session_id="s")
        await a.refused("evolve_knowledge", "session_closed", session_id="s", operations=[add("x")])
        merged = await a.ok(
            "merge_branch",
            target_session_id="s",
            source_session_id=on_a["source_session_id"],
            resolutions={"pluto": "branch_a"},
        )
        assert merged["merged"]
        await same((a, b), "s")
        await b.refused("evolve_knowledge", "session_closed", session_id="s", operations=[add("x")])
        await b.ok("close_session", session_id="s", reopen=True)
        await same((a, b), "s")
        await a.evolve("s", add("x"))


async def test_a_replica_that_was_away_catches_up_with_both_going_on(tmp_path: Path) -> None:
    made = Team(tmp_path, 2)
    async with made.replica(0) as a:
        async with made.replica(1) as b:
            await a.evolve("s", add("pluto"), create=True)
            await same((a, b), "s")
        await a.evolve("s", update("pluto", radius=1))
        async with made.replica(1, CKS_GOSSIP_ENABLED="false") as alone:
            await alone.evolve("s", update("pluto", moons=5))
            await alone.evolve("t", add("x"), create=True)
        async with made.replica(1) as b:
            await same((a, b), "s")
            await same((a, b), "t")
            assert await structure(a, "s", "pluto") == {"radius": 1, "moons": 5}


async def test_a_replica_that_lost_its_file_or_got_an_older_copy_recovers(tmp_path: Path) -> None:
    made = Team(tmp_path, 2)
    async with made.replica(0) as a:
        async with made.replica(1) as b:
            await a.evolve("s", add("pluto", radius=0), create=True)
            await same((a, b), "s")
        copy = (tmp_path / "1.db").read_bytes()
        async with made.replica(1) as b:
            await b.evolve("s", update("pluto", radius=1))
            await same((a, b), "s")
        made.lose(1)
        (tmp_path / "1.db").write_bytes(copy)
        async with made.replica(1) as b:
            await until_structure(b, "s", "pluto", {"radius": 1})
        made.lose(1)
        async with made.replica(1) as b:
            await until_structure(b, "s", "pluto", {"radius": 1})
            await b.evolve("s", update("pluto", radius=2))
            await until_structure(a, "s", "pluto", {"radius": 2})


async def test_three_replicas_agree_on_all_that_merges(tmp_path: Path) -> None:
    async with team(tmp_path, 3) as agents:
        await agents[0].evolve("s", *(add(f"o{n}") for n in range(3)), create=True)
        await same(agents, "s")
        for round_number in range(5):
            for number, agent in enumerate(agents):
                await agent.evolve("s", update(f"o{number}", round=round_number))
        await same(agents, "s")
        for agent in agents:
            for number in range(3):
                await until_structure(agent, "s", f"o{number}", {"round": 4})
            assert (await agent.ok("list_gossip_conflicts", state="open"))["count"] == 0
        assert len(await agents[0].pages("list_sessions", "sessions")) == 1


async def test_of_two_servers_on_one_database_one_gossips_and_the_other_takes_over(tmp_path: Path) -> None:
    made = Team(tmp_path, 2)
    async with made.replica(0) as a, made.replica(1) as b, made.replica(0) as beside:
        status = await beside.until("runtime_status", lambda s: s["gossip"]["state"] != "starting")
        assert status["gossip"]["state"] == "standby"
        await beside.evolve("s", add("pluto", radius=0), create=True)
        await same((beside, a, b), "s")
        await diverge(beside, b)
        await conflicts(a, "open", 1)
    async with made.replica(0) as again:
        await again.until("runtime_status", lambda s: s["gossip"]["state"] == "active")


async def test_a_wrong_secret_is_told_and_nothing_replicates(tmp_path: Path) -> None:
    made = Team(tmp_path, 2)
    async with made.replica(0) as a, made.replica(1, CKS_GOSSIP_SECRET="b" * 40) as b:
        await a.evolve("s", add("pluto"), create=True)
        status = await b.until("runtime_status", lambda s: s["gossip"]["peers"][0]["state"] == "failing")
        with anyio.fail_after(PATIENCE_S):
            while "secret" not in (status["gossip"]["peers"][0]["last_error"] or ""):
                await anyio.sleep(0.05)
                status = await b.ok("runtime_status")
        assert await structure(b, "s", "pluto") is None


@pytest.mark.parametrize("secret", ["", "short"])
async def test_gossip_without_a_long_secret_does_not_start(tmp_path: Path, secret: str) -> None:
    import sys

    program = str(Path(sys.executable).with_name("cks-mcp"))
    surroundings = {
        "CKS_MCP_DB_PATH": str(tmp_path / "x.db"),
        "CKS_GOSSIP_ENABLED": "true",
        "CKS_GOSSIP_SECRET": secret,
        "PATH": "/usr/bin:/bin",
    }
    ended = await anyio.run_process([program], env=surroundings, check=False, input=b"")
    assert ended.returncode != 0 and b"CKS_GOSSIP_SECRET" in ended.stderr
