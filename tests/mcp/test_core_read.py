"""Explaining, walking, searching and exporting through the real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from serving import PATIENCE_S, Agent, add, ids, infer, relate, serving, settle, update, whole

OLD = "2020-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    async with serving(tmp_path_factory.mktemp("read") / "cks.db") as agent:
        yield agent


async def test_a_session_before_its_first_write_reads_as_empty_and_stays_unmade(agent: Agent) -> None:
    told = await agent.ok("explain_knowledge")
    assert (told["session_id"], told["state"], told["counts"]["objects"]) == ("main", "open", 0)
    assert told["open_conflicts"] == [] and told["counts"]["by_type"] == {}
    assert (await agent.ok("export_session")) == {"objects": [], "version": "1.0"}
    assert (await agent.ok("validate_knowledge"))["valid"] is True
    assert len((await agent.ok("list_versions"))["versions"]) == 1
    assert (await agent.ok("search_knowledge", query="x"))["hits"] == []
    assert (await agent.ok("compare_versions"))["objects"] == []
    assert (await agent.ok("compare_versions", from_="main", to="main"))["objects"] == []
    await agent.refused("query_subgraph", "object_not_found", seed_ids=["x"])
    await agent.refused("explain_knowledge", "object_not_found", object_id="x")
    assert (await agent.resource("cks://sessions/main"))["objects"] == 0
    assert "main" not in [s["session_id"] for s in await agent.pages("list_sessions", "sessions")]
    for tool in (
        "explain_knowledge",
        "export_session",
        "validate_knowledge",
        "list_versions",
        "compare_versions",
    ):
        error = await agent.refused(tool, "session_not_found", session_id="nobody")
        assert "'nobody'" in error["message"]
        assert (await agent.refused(tool, "invalid_parameter", session_id="no@body"))["details"] == {
            "argument": "session_id"
        }


async def test_the_overview_counts_and_names_what_is_open(agent: Agent) -> None:
    name = await agent.session(
        add("claim", "Claim"),
        add("fact"),
        add("late", valid_until=OLD),
        add("new"),
        infer("i1", ["fact"], "claim", 0.4),
        infer("i2", ["fact"], "claim", 0.9),
        title="All about it",
        message="first",
    )
    told = await agent.until(
        "explain_knowledge", lambda told: len(told["open_conflicts"]) == 2, session_id=name
    )
    assert told["title"] == "All about it" and told["head"]["message"] == "first"
    assert told["counts"]["by_type"] == {"Body": 3, "InferenceStep": 2, "Claim": 1}
    assert {key: told["counts"][key] for key in ("objects", "types", "open_conflicts")} == {
        "objects": 6,
        "types": 3,
        "open_conflicts": 2,
    }
    assert told["freshness"] == {"expired": 1, "expired_ids": ["late"], "verifications_expired": 0}
    found = {conflict["kind"]: conflict for conflict in told["open_conflicts"]}
    assert set(found) == {"inference", "temporal"}
    assert sorted(found["inference"]["object_ids"]) == ["claim", "i1", "i2"]
    assert found["temporal"]["object_ids"] == ["late"]
    assert all(set(c) >= {"record_id", "kind", "object_ids"} for c in told["open_conflicts"])
    await agent.evolve(name, settle("claim", "i2"), update("late", valid_until=None))
    await agent.until("explain_knowledge", lambda told: told["open_conflicts"] == [], session_id=name)


async def test_an_object_with_its_relations_reasons_and_dates(agent: Agent) -> None:
    until = "2999-01-01T00:00:00Z"
    name = await agent.session(
        add("sun", valid_until=until),
        add("earth"),
        add("seen", "Fact"),
        add("claim", "Claim"),
        relate("r1", "earth", "sun"),
        relate("r2", "sun", "claim", relation_type="supports"),
        infer("low", ["seen"], "earth", 0.5),
        infer("i1", ["earth", "sun"], "claim", 0.4, justification="one", alternatives_considered=["none"]),
        infer("i2", ["low"], "claim", 0.9),
    )
    await agent.evolve(name, settle("claim", "i2", "better sources"), message="by rule: better sources")
    sun = await agent.ok("explain_knowledge", session_id=name, object_id="sun")
    assert sun["object"] == whole("sun", valid_until=until)
    assert [(r["relation_id"], r["relation_type"]) for r in sun["relations"]] == [
        ("r1", "orbits"),
        ("r2", "supports"),
    ]
    assert sun["relations"][0]["participants"] == ["earth", "sun"] and sun["relations_total"] == 2
    assert sun["validity"] == {"valid_until": until, "expired": False, "archived": False, "archived_at": None}
    claim = await agent.ok("explain_knowledge", session_id=name, object_id="claim")
    (active,), (superseded,) = claim["active_steps"], claim["superseded_steps"]
    assert (active["step_id"], active["confidence"]) == ("i2", 0.9)
    assert superseded["step_id"] == "i1" and superseded["justification"] == "one"
    assert superseded["alternatives_considered"] == ["none"]
    assert superseded["superseded_reason"] == "better sources" and superseded["current_step_id"] == "i2"
    chain = claim["premise_chain"]
    assert [(step["step_id"], step["depth"]) for step in chain["steps"]] == [("i2", 1), ("low", 2)]
    assert chain["base_facts"] == ["seen"] and chain["truncated"] is False
    step = await agent.ok("explain_knowledge", session_id=name, object_id="i1")
    assert step["last_change"]["message"] == "by rule: better sources"
    assert step["last_change"]["version_id"] == claim["head"]["version_id"]
    relation = await agent.ok("explain_knowledge", session_id=name, object_id="r1")
    assert relation["object"]["structure"]["participants"] == ["earth", "sun"]
    assert "validity" not in relation or relation["validity"] is None


async def test_a_chain_names_each_step_once_and_ends_though_it_is_a_circle(agent: Agent) -> None:
    rows = [add(f"f{n}") for n in range(4)]
    steps = [infer(f"i{n}", [f"f{(n + 1) % 4}", f"f{(n + 2) % 4}"], f"f{n}", 0.5) for n in range(4)]
    name = await agent.session(*rows, *steps)
    chain = (await agent.ok("explain_knowledge", session_id=name, object_id="f0"))["premise_chain"]
    assert sorted(step["step_id"] for step in chain["steps"]) == ["i0", "i1", "i2", "i3"]
    assert chain["base_facts"] == []


async def test_relations_come_in_pages_and_cursors_stay_with_their_list(agent: Agent) -> None:
    name = await agent.session(
        add("hub"),
        *(add(f"n{k}") for k in range(30)),
        *(relate(f"r{k:02}", "hub", f"n{k}") for k in range(30)),
    )
    found = await agent.pages("explain_knowledge", "relations", session_id=name, object_id="hub", limit=7)
    assert [r["relation_id"] for r in found] == [f"r{k:02}" for k in range(30)]
    page = await agent.ok("explain_knowledge", session_id=name, object_id="hub", limit=1)
    for tool, more in (
        ("explain_knowledge", {"session_id": name, "object_id": "n1"}),
        ("explain_knowledge", {"object_id": "hub"}),
        ("list_versions", {"session_id": name}),
        ("list_sessions", {}),
        ("search_knowledge", {"session_id": name, "query": "hub"}),
        ("compare_versions", {"session_id": name}),
        ("query_subgraph", {"session_id": name, "seed_ids": ["hub"]}),
        ("list_inference_conflicts", {}),
        ("list_gossip_conflicts", {"peek": True}),
        ("validate_knowledge", {"session_id": name}),
    ):
        code = "object_not_found" if more == {"object_id": "hub"} else "invalid_parameter"
        error = await agent.refused(tool, code, cursor=page["next_cursor"], **more)
        if code == "invalid_parameter":
            assert error["details"]["argument"] == "cursor", tool


async def test_a_neighbourhood_is_walked_breadth_first(agent: Agent) -> None:
    name = await agent.session(
        *(add(id) for id in "abcde"),
        relate("ab", "a", "b"),
        relate("bc", "b", "c", relation_type="near"),
        relate("cd", "c", "d"),
    )

    async def around(*seeds: str, **more: Any) -> tuple[list[str], list[str], bool]:
        found = await agent.ok("query_subgraph", session_id=name, seed_ids=[*seeds], **more)
        assert found["version_id"] == await agent.head(name)
        return ids(found["objects"]), ids(found["relations"]), found["truncated"]

    assert await around("a") == (["a", "b"], ["ab"], False)
    assert await around("a", depth=0) == (["a"], [], False)
    assert await around("a", depth=2) == (["a", "b", "c"], ["ab", "bc"], False)
    assert await around("a", depth=10) == (["a", "b", "c", "d"], ["ab", "bc", "cd"], False)
    assert await around("a", depth=10, relation_types=["orbits"]) == (["a", "b"], ["ab"], False)
    assert await around("a", "a", "e", depth=0) == (["a", "e"], [], False)
    assert await around("cd") == (["c", "d"], ["cd"], False)
    assert await around("a", depth=10, max_objects=3) == (["a", "b"], ["ab"], True)
    error = await agent.refused("query_subgraph", "object_not_found", session_id=name, seed_ids=["a", "zz"])
    assert error["details"]["object_id"] == "zz"
    for argument, value in (
        ("seed_ids", []),
        ("seed_ids", ["a"] * 101),
        ("depth", -1),
        ("depth", 11),
        ("max_objects", 0),
        ("max_objects", 501),
        ("relation_types", "orbits"),
    ):
        given = {"seed_ids": ["a"], argument: value}
        error = await agent.refused("query_subgraph", "invalid_parameter", session_id=name, **given)
        assert error["details"]["argument"] == argument


async def test_a_hub_is_walked_to_its_end_by_cursor_and_by_next_seeds(agent: Agent) -> None:
    name = await agent.session(
        add("hub"),
        *(add(f"n{k}") for k in range(60)),
        *(relate(f"r{k:02}", "hub", f"n{k}") for k in range(60)),
    )
    all_of_it = {"hub", *(f"n{k}" for k in range(60)), *(f"r{k:02}" for k in range(60))}
    seen: list[str] = []
    arguments: dict[str, Any] = {"session_id": name, "seed_ids": ["hub"], "max_objects": 20}
    while True:
        page = await agent.ok("query_subgraph", **arguments)
        seen += [*ids(page["objects"]), *ids(page["relations"])]
        assert page["truncated"] is ("next_cursor" in page)
        if not page["truncated"]:
            break
        arguments["cursor"] = page["next_cursor"]
        await agent.evolve(
            name, update("hub", counted=len(seen))
        )  # a walk goes on with the version it began at
    assert len(seen) == len(set(seen)) and set(seen) == all_of_it
    seeds, reached = ["hub"], set[str]()
    for _ in range(40):
        page = await agent.ok("query_subgraph", session_id=name, seed_ids=seeds, max_objects=20)
        reached |= {*ids(page["objects"]), *ids(page["relations"])}
        if not page["truncated"]:
            break
        seeds = [seed for seed in page["next_seeds"] if seed not in reached]
    assert reached == all_of_it


async def test_search_ranks_finds_any_script_and_pages(agent: Agent) -> None:
    name = await agent.session(
        add("pluto", name="Pluto", note="a dwarf planet, discovered by Clyde Tombaugh"),
        add("größe", name="Größe der Erde", wert="mittel"),
        add("hanzi", name="冥王星", note="冥王星是矮行星"),
        add("planet", name="planet planet planet"),
        add("x", note={"deep": ["telescope", 1930]}),
    )

    async def hits(query: str, **more: Any) -> list[str]:
        found = await agent.ok("search_knowledge", session_id=name, query=query, **more)
        assert all(set(hit) == {"object_id", "type", "name", "score", "snippet"} for hit in found["hits"])
        scores = [hit["score"] for hit in found["hits"]]
        assert scores == sorted(scores, reverse=True)
        return [hit["object_id"] for hit in found["hits"]]

    assert (await hits("planet"))[0] == "planet" and set(await hits("planet")) == {"planet", "pluto"}
    assert await hits("tombaugh dwarf") == ["pluto"] and await hits("GRÖSSE") == ["größe"]
    assert await hits("矮行星") == ["hanzi"] and await hits("telesc") == ["x"] and await hits("1930") == ["x"]
    assert await hits('" OR "') == [] and await hits("zebra") == []
    any_word = await agent.ok("search_knowledge", session_id=name, query="zebra telescope")
    assert any_word["matched"] == "any" and [hit["object_id"] for hit in any_word["hits"]] == ["x"]
    (hit,) = (await agent.ok("search_knowledge", session_id=name, query="tombaugh"))["hits"]
    assert "**Tombaugh**" in hit["snippet"]
    found = await agent.pages("search_knowledge", "hits", session_id=name, query="planet", limit=1)
    assert {hit["object_id"] for hit in found} == {"planet", "pluto"}
    await agent.evolve(name, update("pluto", note="a body"))
    assert await hits("dwarf") == []
    for query in ("", " ", "!?", "x" * 1001):
        error = await agent.refused("search_knowledge", "invalid_parameter", session_id=name, query=query)
        assert error["details"]["argument"] == "query"


async def test_what_is_exported_can_be_imported_and_is_byte_equal(agent: Agent) -> None:
    name = await agent.session(
        add("b", z=1, a=[1.5, {"y": None, "x": "é 😀"}], big=1e300),
        add("a"),
        relate("r", "a", "b", weight=0.1),
        infer("i", ["a"], "b", 1),
    )
    exported = await agent.export(name)
    assert ids(exported["objects"]) == ["a", "b", "i", "r"] and exported["version"] == "1.0"
    assert list(exported) == ["objects", "version"]
    await agent.ok("evolve_knowledge", session_id="copy", create=True, knowledge=exported)
    copied = await agent.export("copy")
    assert json.dumps(copied) == json.dumps(exported)
    assert (await agent.ok("compare_versions", session_id=name, to="copy"))["objects"] == []
    answer = await agent.answer("export_session", {"session_id": name})
    assert json.loads(answer.content[0].text) == exported  # type: ignore[union-attr]
    again = await agent.ok("evolve_knowledge", session_id="copy", knowledge=exported)
    assert again["no_op"] is True
    assert PATIENCE_S > 0
