"""Sessions, versions, comparisons and branches through the real server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from serving import Agent, add, infer, relate, remove, serving, settle, update


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    async with serving(tmp_path_factory.mktemp("history") / "cks.db") as agent:
        yield agent


async def listed(agent: Agent, **arguments: Any) -> list[str]:
    return [row["session_id"] for row in await agent.pages("list_sessions", "sessions", **arguments)]


async def test_sessions_are_listed_by_id_in_pages(agent: Agent) -> None:
    names = [f"list-{k}" for k in range(7)]
    for name in names:
        await agent.evolve(name, add("a"), create=True, title=f"Title of {name}")
    await agent.ok("close_session", session_id="list-3")
    everything = await listed(agent, limit=2)
    assert everything == sorted(everything) and set(names) <= set(everything)
    assert "list-3" not in await listed(agent, state="open") and await listed(agent, state="closed") == [
        "list-3"
    ]
    assert await listed(agent, state="remote") == []
    row = next(r for r in await agent.pages("list_sessions", "sessions") if r["session_id"] == "list-1")
    assert (row["title"], row["state"], row["objects"]) == ("Title of list-1", "open", 1)
    assert row["head"] == await agent.head("list-1") and row["created_at"].endswith("Z")
    page = await agent.ok("list_sessions", limit=1)
    error = await agent.refused(
        "list_sessions", "invalid_parameter", state="open", cursor=page["next_cursor"]
    )
    assert error["details"]["argument"] == "cursor"
    for argument, value in (("limit", 0), ("limit", 501), ("limit", "5"), ("limit", True), ("state", "gone")):
        error = await agent.refused("list_sessions", "invalid_parameter", **{argument: value})
        assert error["details"]["argument"] == argument


async def test_every_version_comes_before_its_parents_on_every_page(agent: Agent) -> None:
    name = await agent.session(add("base"))
    for k in range(3):
        branch = (await agent.ok("create_branch", session_id=name))["session_id"]
        await agent.evolve(branch, add(f"b{k}"), message=f"branch {k}")
        await agent.evolve(name, add(f"m{k}"), message=f"main {k}")
        await agent.ok("merge_branch", target_session_id=name, source_session_id=branch)
    whole = (await agent.ok("list_versions", session_id=name, limit=500))["versions"]
    assert len(whole) == 11 and whole[0]["version_id"] == await agent.head(name)
    assert whole[-1]["parents"] == [] and whole[0]["counts"] == {"objects": 7}
    place = {version["version_id"]: k for k, version in enumerate(whole)}
    assert all(place[parent] > k for k, version in enumerate(whole) for parent in version["parents"])
    assert set(whole[0]) >= {"version_id", "parents", "author", "message", "created_at", "counts"}
    for limit in (1, 2, 3, 10):
        paged = await agent.pages("list_versions", "versions", session_id=name, limit=limit)
        assert paged == whole
    other = await agent.session(add("x"))
    cursor = (await agent.ok("list_versions", session_id=name, limit=1))["next_cursor"]
    error = await agent.refused("list_versions", "invalid_parameter", session_id=other, cursor=cursor)
    assert error["details"]["argument"] == "cursor"


async def test_a_history_wider_than_a_cursor_is_listed_whole(agent: Agent) -> None:
    name = await agent.session(add("base"))
    branches = [(await agent.ok("create_branch", session_id=name))["session_id"] for _ in range(70)]
    for k, branch in enumerate(branches):
        await agent.evolve(branch, add(f"b{k}"))
        await agent.ok("merge_branch", target_session_id=name, source_session_id=branch)
    await agent.evolve(name, add("last"))
    whole = await agent.pages("list_versions", "versions", session_id=name, limit=20)
    assert len(whole) == 1 + 69 + 70 + 2  # the first merge was a fast-forward
    for limit in (50, 500):
        assert await agent.pages("list_versions", "versions", session_id=name, limit=limit) == whole


async def test_comparing_defaults_prefixes_and_sessions(agent: Agent) -> None:
    name = await agent.session(add("a", x=1), add("b"))
    first = await agent.head(name)
    second = (await agent.evolve(name, update("a", x=2, y=[1]), add("c")))["version_id"]
    third = (
        await agent.evolve(name, remove("b"), {"op": "rename_object", "object_id": "a", "new_name": "A"})
    )["version_id"]

    async def compared(**arguments: Any) -> tuple[str, str, dict[str, Any]]:
        found = await agent.ok("compare_versions", session_id=name, **arguments)
        counts = {label: part["count"] for label, part in found["changed"].items()}
        by_action = [entry["action"] for entry in found["objects"]]
        assert counts == {
            "added": by_action.count("added"),
            "updated": by_action.count("modified"),
            "removed": by_action.count("removed"),
        }
        return found["from_version_id"], found["to_version_id"], {e["object_id"]: e for e in found["objects"]}

    old, new, objects = await compared()
    assert (old, new) == (second, third)
    assert objects["a"] == {
        "object_id": "a",
        "action": "modified",
        "type": "Body",
        "name": "A",
        "changes": {"identity.name": {"from": "a", "to": "A"}},
    }
    assert objects["b"]["action"] == "removed"
    old, new, objects = await compared(to=second)
    assert (old, new) == (first, second)
    assert objects["a"]["changes"] == {"x": {"from": 1, "to": 2}, "y": {"to": [1]}}
    assert objects["c"]["changes"] == {
        "identity.name": {"to": "c"},
        "identity.type": {"to": "Body"},
    }
    assert (await compared(from_=first))[:2] == (first, third)
    assert (await compared(from_=third[:8].upper(), to=first[:12]))[:2] == (third, first)
    assert (await compared(from_=third))[2] == {}
    branch = (await agent.ok("create_branch", session_id=name, version_id=first))["session_id"]
    await agent.evolve(branch, add("z"))
    branch_head = await agent.head(branch)
    assert (await compared(to=branch))[:2] == (third, branch_head)
    assert (await compared(from_=branch))[:2] == (branch_head, third)
    assert (await compared(to=name))[:2] == (second, third)
    assert (await compared(from_=branch, to=branch))[2] == {}
    # a session that exists wins over a version id
    await agent.evolve(first[:8], add("shadow"), create=True)
    shadow = await agent.head(first[:8])
    assert (await compared(from_=first[:8]))[0] == shadow
    assert (await compared(from_=first[:9]))[0] == first
    for argument in ("from_", "to"):
        await agent.refused("compare_versions", "session_not_found", session_id=name, **{argument: "nobody"})
        await agent.refused("compare_versions", "version_not_found", session_id=name, **{argument: "0" * 64})
        error = await agent.refused(
            "compare_versions", "invalid_parameter", session_id=name, **{argument: "a/b"}
        )
        assert error["details"]["argument"] == argument.rstrip("_")


async def test_a_merge_is_compared_with_what_stood_here_before(agent: Agent) -> None:
    for _ in range(4):  # whichever parent sorts first
        name = await agent.session(add("a"))
        branch = (await agent.ok("create_branch", session_id=name))["session_id"]
        await agent.evolve(branch, add("theirs"))
        await agent.evolve(name, add("ours"))
        before = await agent.head(name)
        await agent.ok("merge_branch", target_session_id=name, source_session_id=branch)
        found = await agent.ok("compare_versions", session_id=name)
        assert found["from_version_id"] == before and found["changed"]["added"]["ids"] == ["theirs"]


async def test_a_comparison_is_paged_though_the_head_moves(agent: Agent) -> None:
    name = await agent.session()
    await agent.evolve(name, *(add(f"o{k:02}") for k in range(25)))
    first = await agent.ok("compare_versions", session_id=name, limit=10)
    assert first["changed"]["added"]["count"] == 25 and len(first["objects"]) == 10
    await agent.evolve(name, add("later"))
    rest = await agent.pages(
        "compare_versions", "objects", session_id=name, limit=10, cursor=first["next_cursor"]
    )
    assert [e["object_id"] for e in first["objects"] + rest] == [f"o{k:02}" for k in range(25)]
    error = await agent.refused(
        "compare_versions", "invalid_parameter", session_id=name, to=name, cursor=first["next_cursor"]
    )
    assert error["details"]["argument"] == "cursor"


async def test_an_account_of_a_difference(agent: Agent) -> None:
    name = await agent.session(
        add("a", x=1), add("b"), add("c"), relate("r", "a", "b"), infer("i", ["a"], "c", 0.5)
    )
    old = await agent.head(name)
    await agent.evolve(
        name, update("a", x=2), add("d"), update("r", participants=["a", "c"]), infer("j", ["b"], "c", 0.9)
    )
    await agent.evolve(name, settle("c", "j", "newer"))
    told = await agent.ok("explain_diff", session_id=name, target_version_id=old[:8])
    assert (told["from_version_id"], told["to_version_id"]) == (old, await agent.head(name))
    assert {e["object_id"] for e in told["added"]} == {"d", "j"} and told["removed"] == []
    changes = {e["object_id"]: e["changes"] for e in told["modified"]}
    assert changes["a"] == {"x": {"from": 1, "to": 2}} and set(changes) == {"a", "i", "r"}
    (relinked,) = told["relinked_relations"]
    assert relinked["participants"] == {"from": ["a", "b"], "to": ["a", "c"]}
    assert {(e["object_id"], e["change"]) for e in told["inference_changes"]} == {
        ("i", "superseded"),
        ("j", "added"),
    }
    assert told["summary"] and "base_version_id" not in told
    branch = (await agent.ok("create_branch", session_id=name, version_id=old))["session_id"]
    await agent.evolve(branch, update("a", x=3))
    told = await agent.ok("explain_diff", session_id=name, other_session_id=branch)
    assert told["base_version_id"] == old and told["to_version_id"] == await agent.head(branch)
    changes = {e["object_id"]: e["changes"] for e in told["modified"]}
    assert changes["a"] == {"x": {"from": 2, "to": 3, "base": 1}}
    error = await agent.refused("explain_diff", "invalid_parameter", session_id=name)
    assert error["details"]["argument"] == "target_version_id"
    await agent.refused(
        "explain_diff", "invalid_parameter", session_id=name, target_version_id=old, other_session_id=branch
    )
    await agent.refused("explain_diff", "version_not_found", session_id=name, target_version_id="0" * 8)
    await agent.refused("explain_diff", "session_not_found", session_id=name, other_session_id="nobody")
    for argument in ("target_version_id", "other_session_id"):
        error = await agent.refused("explain_diff", "invalid_parameter", session_id=name, **{argument: "?"})
        assert error["details"]["argument"] == argument


async def test_branches_start_anywhere_in_the_history_and_are_open(agent: Agent) -> None:
    name = await agent.session(add("a"), title="Parent")
    old = await agent.head(name)
    await agent.evolve(name, add("b"))
    made = await agent.ok("create_branch", session_id=name, title="Über alles: what if?")
    assert made["version_id"] == await agent.head(name) and made["title"] == "Über alles: what if?"
    assert made["fork"] == {"session_id": name, "version_id": made["version_id"]}
    assert made["session_id"].startswith(f"{name}-") and len(made["session_id"]) <= 64
    told = await agent.ok("explain_knowledge", session_id=made["session_id"])
    assert told["fork"] == made["fork"] and told["counts"]["objects"] == 2
    early = await agent.ok("create_branch", session_id=name, version_id=old[:9])
    assert early["version_id"] == old and early["title"] == ""
    await agent.ok("close_session", session_id=name)
    opened = await agent.ok("create_branch", session_id=name)
    assert opened["version_id"] != await agent.head(name)
    assert (await agent.evolve(opened["session_id"], add("c")))["no_op"] is False
    assert (await agent.ok("create_branch"))["fork"]["session_id"] == "main"
    elsewhere = await agent.session(add("q"))
    error = await agent.refused(
        "create_branch", "invalid_parameter", session_id=name, version_id=await agent.head(elsewhere)
    )
    assert error["details"]["argument"] == "version_id"
    await agent.refused("create_branch", "version_not_found", session_id=name, version_id="0" * 64)
    await agent.refused("create_branch", "session_not_found", session_id="nobody")
    error = await agent.refused("create_branch", "invalid_parameter", session_id=name, version_id="abc")
    assert error["details"]["argument"] == "version_id"
