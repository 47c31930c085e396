"""merge_branch through the real server: what merges by itself, every kind of conflict, every form of resolution."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from serving import Agent, add, infer, relate, remove, serving, settle, update, whole


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    async with serving(tmp_path_factory.mktemp("merge") / "cks.db") as agent:
        yield agent


class Lines:
    """A target and a source that were one, and the merge of the second into the first."""

    def __init__(self, agent: Agent, target: str, source: str) -> None:
        self.agent = agent
        self.target = target
        self.source = source

    async def merge(self, **arguments: Any) -> dict[str, Any]:
        return await self.agent.ok("merge_branch", **self.named(), **arguments)

    async def refused(self, code: str, **arguments: Any) -> dict[str, Any]:
        return await self.agent.refused("merge_branch", code, **self.named(), **arguments)

    def named(self) -> dict[str, str]:
        return {"target_session_id": self.target, "source_session_id": self.source}

    async def clash(self, **arguments: Any) -> dict[str, Any]:
        """The one conflict of the merge, which leaves the target where it was."""
        head = await self.agent.head(self.target)
        told = await self.merge(**arguments)
        assert told["merged"] is False and "version_id" not in told
        assert await self.agent.head(self.target) == head
        (conflict,) = told["conflicts"]
        assert told["conflicts_total"] == 1 and "conflict_ids" not in told
        return dict(conflict)

    async def object(self, id: str) -> dict[str, Any]:
        return await self.agent.object(self.target, id)


async def diverged(agent: Agent, base: list[Any], ours: list[Any], theirs: list[Any]) -> Lines:
    target = await agent.session(*base)
    source = (await agent.ok("create_branch", session_id=target))["session_id"]
    await agent.evolve(target, *ours)
    await agent.evolve(source, *theirs)
    return Lines(agent, target, source)


async def test_different_fields_merge_by_themselves_and_only_once(agent: Agent) -> None:
    lines = await diverged(
        agent,
        [add("a", x=1, y=1), add("b"), add("c")],
        [update("a", x=2), remove("b"), add("n", side="ours")],
        [update("a", y=2), remove("b"), add("m"), {"op": "rename_object", "object_id": "c", "new_name": "C"}],
    )
    base = (await agent.ok("list_versions", session_id=lines.target))["versions"][1]["version_id"]
    before = await agent.head(lines.target)
    dry = await lines.merge(dry_run=True)
    assert dry["merged"] is True and dry["dry_run"] is True and "version_id" not in dry
    assert await agent.head(lines.target) == before
    told = await lines.merge()
    assert told["merged"] is True and told["no_op"] is False and told["base_version_id"] == base
    assert "base_version_ids" not in told and "dry_run" not in told
    assert told["changed"] == dry["changed"]
    assert told["changed"]["added"]["ids"] == ["m"] and told["changed"]["updated"]["ids"] == ["a", "c"]
    assert told["dropped_relations"] == []
    assert (await lines.object("a"))["structure"] == {"x": 2, "y": 2}
    version = (await agent.ok("list_versions", session_id=lines.target))["versions"][0]
    assert sorted(version["parents"]) == sorted([before, await agent.head(lines.source)])
    assert version["message"] == f"Merge {lines.source} into {lines.target}"
    again = await lines.merge()
    assert again["merged"] is True and again["no_op"] is True and again["version_id"] == told["version_id"]
    back = await agent.ok("merge_branch", target_session_id=lines.source, source_session_id=lines.target)
    assert back["version_id"] == told["version_id"], "a target that has not moved is fast-forwarded"
    assert (await lines.merge())["no_op"] is True


async def test_edit_edit_and_its_four_resolutions(agent: Agent) -> None:
    base, ours, theirs = [add("a", x=1, y=1, z=1)], [update("a", x=2, y=2)], [update("a", x=3, z=3)]
    lines = await diverged(agent, base, ours, theirs)
    conflict = await lines.clash()
    assert (conflict["object_id"], conflict["kind"], conflict["fields"]) == ("a", "edit/edit", ["x"])
    assert conflict["base"] == whole("a", x=1, y=1, z=1)
    assert conflict["target_diff"] == {
        "action": "modified",
        "type": "Body",
        "name": "a",
        "changes": {"x": {"from": 1, "to": 2}, "y": {"from": 1, "to": 2}},
    }
    assert conflict["source_diff"]["changes"] == {"x": {"from": 1, "to": 3}, "z": {"from": 1, "to": 3}}
    assert conflict == await lines.clash(dry_run=True)
    wanted = {"branch_a": {"x": 2, "y": 2, "z": 3}, "branch_b": {"x": 3, "y": 2, "z": 3}}
    for side, structure in wanted.items():
        lines = await diverged(agent, base, ours, theirs)
        dry = await lines.merge(resolutions={"a": side}, dry_run=True)
        assert dry["merged"] is True and (await lines.object("a"))["structure"]["x"] == 2
        assert (await lines.merge(resolutions={"a": side}))["merged"] is True
        assert (await lines.object("a"))["structure"] == structure
        version = (await agent.ok("list_versions", session_id=lines.target))["versions"][0]
        assert f"resolved a: {side}" in version["message"]
    lines = await diverged(agent, base, ours, theirs)
    await lines.merge(resolutions={"a": whole("a", "Star", "Sun", x=9)})
    assert await lines.object("a") == whole("a", "Star", "Sun", x=9)
    lines = await diverged(agent, [*base, add("b"), relate("r", "a", "b")], ours, theirs)
    told = await lines.merge(resolutions={"a": None})
    assert told["dropped_relations"] == ["r"] and told["changed"]["removed"]["ids"] == ["a", "r"]
    assert (await lines.merge())["no_op"] is True, "what was dropped does not come back"


async def test_remove_edit_and_add_add(agent: Agent) -> None:
    base = [add("a", x=1), add("b"), relate("r", "a", "b")]
    lines = await diverged(agent, base, [remove("a")], [update("a", x=2)])
    conflict = await lines.clash()
    assert (conflict["object_id"], conflict["kind"]) == ("a", "remove/edit")
    assert conflict["target_diff"]["action"] == "removed" and conflict["source_diff"]["action"] == "modified"
    told = await lines.merge(resolutions={"a": "branch_b"})
    assert told["merged"] and (await lines.object("a"))["structure"] == {"x": 2}
    lines = await diverged(agent, base, [remove("a")], [update("a", x=2)])
    assert (await lines.merge(resolutions={"a": "branch_a"}))["merged"]
    await agent.refused("explain_knowledge", "object_not_found", session_id=lines.target, object_id="a")
    lines = await diverged(agent, [], [add("n", x=1)], [add("n", x=2, y=2)])
    conflict = await lines.clash()
    assert (conflict["kind"], conflict["base"], conflict["fields"]) == ("add/add", None, ["x", "y"])
    assert conflict["source_diff"]["action"] == "added"
    assert (await lines.merge(resolutions={"n": "branch_b"}))["merged"]
    assert (await lines.object("n"))["structure"] == {"x": 2, "y": 2}
    lines = await diverged(agent, [], [add("n", x=1)], [add("n", x=1.0)])
    assert (await lines.merge())["merged"] is True, "the same on both sides is no conflict"


async def test_dangling_and_invalid_together(agent: Agent) -> None:
    base = [add("a"), add("b")]
    lines = await diverged(agent, base, [remove("b")], [relate("r", "a", "b")])
    conflict = await lines.clash()
    assert (conflict["object_id"], conflict["kind"], conflict["missing"]) == ("r", "dangling", ["b"])
    told = await lines.merge(resolutions={"r": "branch_b"})
    assert told["restored"] == ["b"] and (await lines.object("b"))["identity"]["id"] == "b"
    lines = await diverged(agent, base, [remove("b")], [relate("r", "a", "b")])
    told = await lines.merge(resolutions={"r": "branch_a"})
    assert told["merged"] and "restored" in told and told["restored"] == []
    steps = [add("f"), add("c"), infer("i", ["f"], "c", 0.1), infer("j", ["f"], "c", 0.2)]
    lines = await diverged(agent, steps, [settle("c", "i")], [settle("c", "j")])
    told = await lines.merge()
    assert told["merged"] is False and {c["kind"] for c in told["conflicts"]} == {"invalid_together"}
    assert {c["object_id"] for c in told["conflicts"]} == {"i", "j"}
    assert all(c["diagnostics"][0]["severity"] == "ERROR" for c in told["conflicts"])
    assert (await lines.merge(resolutions={"i": "branch_b", "j": "branch_b"}))["merged"]
    assert (await lines.object("i"))["structure"]["superseded_by"] == "j"


async def test_partial_and_wrong_resolutions(agent: Agent) -> None:
    base = [add("a", x=1), add("b", x=1), add("c", x=1)]
    lines = await diverged(agent, base, [update(id, x=2) for id in "abc"], [update(id, x=3) for id in "abc"])
    head = await agent.head(lines.target)
    told = await lines.merge(resolutions={"b": "branch_a"})
    assert told["merged"] is False and [c["object_id"] for c in told["conflicts"]] == ["a", "c"]
    for resolutions, named in (
        ({"a": "branch_a", "zz": None}, "zz"),
        ({"a": "branch_c"}, "a"),
        ({"a": True}, "a"),
        ({"a": []}, "a"),
        ({"a": whole("b")}, "a"),
    ):
        error = await lines.refused("invalid_parameter", resolutions=resolutions)
        assert error["details"]["argument"] == "resolutions" and f"'{named}'" in error["message"]
    await lines.refused("invalid_knowledge", resolutions={"a": {"identity": {"id": "a"}}})
    await lines.refused("invalid_parameter", resolutions=[])
    assert await agent.head(lines.target) == head
    told = await lines.merge(resolutions={"a": "branch_b", "b": "branch_a", "c": whole("c", x=4)})
    assert told["merged"] and told["changed"]["updated"]["ids"] == ["a", "c"]
    again = await lines.merge(resolutions={"a": "branch_b", "b": "branch_a"})
    assert again["no_op"] is True and again["version_id"] == told["version_id"]
    clean = await diverged(agent, base, [update("a", x=2)], [update("b", x=3)])
    error = await clean.refused("invalid_parameter", resolutions={"a": "branch_a"})
    assert error["details"]["argument"] == "resolutions"


async def test_the_base_can_be_required(agent: Agent) -> None:
    lines = await diverged(agent, [add("a", x=1)], [update("a", x=2)], [update("a", x=3)])
    base = (await lines.merge())["base_version_id"]
    for wrong in (await agent.head(lines.source), "0" * 64, "abc", ""):
        error = await lines.refused("head_moved", base_version_id=wrong)
        assert base in error["message"]
    told = await lines.merge(base_version_id=base[:8], resolutions={"a": "branch_b"})
    assert told["merged"] is True
    error = await lines.refused("head_moved", base_version_id=base)
    assert await agent.head(lines.source) in error["message"]
    assert (await lines.merge(base_version_id=await agent.head(lines.source)))["no_op"] is True


async def test_several_bases_are_all_named(agent: Agent) -> None:
    lines = await diverged(agent, [add("a", x=1)], [update("a", x=2)], [update("a", y=2)])
    first = await agent.ok("create_branch", session_id=lines.target)
    second = await agent.ok("create_branch", session_id=lines.source)
    crossed = Lines(agent, first["session_id"], second["session_id"])
    await agent.ok("merge_branch", target_session_id=crossed.target, source_session_id=lines.source)
    await agent.ok("merge_branch", target_session_id=crossed.source, source_session_id=lines.target)
    await agent.evolve(crossed.target, update("a", x=5))
    await agent.evolve(crossed.source, update("a", x=6))
    told = await crossed.merge()
    bases = sorted([await agent.head(lines.target), await agent.head(lines.source)])
    assert told["base_version_ids"] == bases and told["base_version_id"] == bases[0]
    assert told["conflicts"][0]["fields"] == ["x"] and len(told["conflicts"][0]["bases"]) == 2
    await crossed.refused("head_moved", base_version_id=bases[1])
    assert (await crossed.merge(base_version_id=bases[0], resolutions={"a": "branch_a"}))["merged"]


async def test_closed_sessions(agent: Agent) -> None:
    lines = await diverged(agent, [add("a")], [add("b")], [add("c")])
    await agent.ok("close_session", session_id=lines.source)
    assert (await lines.merge())["merged"] is True
    told = await agent.ok("explain_knowledge", session_id=lines.target)
    assert told["state"] == "open", "the target keeps its own state"
    ahead = (await agent.ok("create_branch", session_id=lines.target))["session_id"]
    await agent.evolve(ahead, add("d"))
    await agent.ok("close_session", session_id=ahead)
    assert (await agent.ok("merge_branch", target_session_id=lines.target, source_session_id=ahead))["merged"]
    assert (await agent.ok("explain_knowledge", session_id=lines.target))["state"] == "open"
    await agent.ok("close_session", session_id=lines.target)
    await lines.refused("session_closed")
    await lines.refused("session_closed", dry_run=True)


async def test_a_branch_of_the_default_session_makes_it_when_it_is_merged_back(agent: Agent) -> None:
    branch = (await agent.ok("create_branch"))["session_id"]
    await agent.evolve(branch, add("a"))
    told = await agent.ok("merge_branch", target_session_id="main", source_session_id=branch)
    assert told["merged"] and told["version_id"] == await agent.head(branch)
    assert (await agent.ok("explain_knowledge"))["counts"]["objects"] == 1


async def test_wrong_sessions(agent: Agent) -> None:
    name = await agent.session(add("a"))
    for target, source in ((name, "nobody"), ("nobody", name)):
        error = await agent.refused(
            "merge_branch", "session_not_found", target_session_id=target, source_session_id=source
        )
        assert "'nobody'" in error["message"]
    error = await agent.refused(
        "merge_branch", "invalid_parameter", target_session_id=name, source_session_id=name
    )
    assert error["details"]["argument"] == "source_session_id"
    for argument in ("target_session_id", "source_session_id"):
        given: dict[str, Any] = {"target_session_id": name, "source_session_id": name}
        for wrong in ("", "a b", 5, None):
            error = await agent.refused("merge_branch", "invalid_parameter", **{**given, argument: wrong})
            assert error["details"]["argument"] == argument
        del given[argument]
        assert (await agent.refused("merge_branch", "invalid_parameter", **given))["details"][
            "argument"
        ] == argument


async def test_a_clash_larger_than_an_answer_is_resolved_in_the_end(agent: Agent) -> None:
    names = [f"o{k:03}" for k in range(40)]
    long = "x" * 1500
    lines = await diverged(
        agent,
        [add(id, text=long) for id in names],
        [update(id, text=f"ours {long}") for id in names],
        [update(id, text=f"theirs {long}") for id in names],
    )
    told = await lines.merge()
    assert told["conflicts_total"] == 40 > len(told["conflicts"]) and told["conflict_ids"] == names
    chosen: dict[str, str] = {}
    while not told["merged"]:
        chosen |= {conflict["object_id"]: "branch_b" for conflict in told["conflicts"]}
        told = await lines.merge(resolutions=chosen)
    assert told["changed"]["updated"]["count"] == 40
