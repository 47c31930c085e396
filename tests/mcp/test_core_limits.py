"""How large things may be: answers with the longest texts on the fullest pages, and requests beyond their limits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from serving import Agent, add, ids, infer, relate, serving, update, whole

from cks_runtime.config import RuntimeConfig
from cks_runtime.runtime import Runtime

OLD = "2020-01-01T00:00:00Z"
WIDE = "😀é\u0001"  # long in UTF-8, longer where it is escaped


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    settings = {
        "CKS_MAX_OBJECTS": "700",
        "CKS_MAX_OBJECT_BYTES": "300000",
        "CKS_MAX_REQUEST_BYTES": "3000000",
    }
    db_path = tmp_path_factory.mktemp("limits") / "cks.db"
    async with Runtime.open(RuntimeConfig(db_path=str(db_path))) as rt:
        await rt.commits.evolve("overfull", [add(f"o{k}") for k in range(720)], create=True)
    async with serving(db_path, settings=settings) as agent:
        yield agent


def name_of(number: int) -> str:
    return f"{number:04}" + WIDE * 160


async def test_full_pages_of_the_longest_texts_lose_nothing(agent: Agent) -> None:
    """Every answer below is measured as it comes in; the pages together hold everything."""
    wide = WIDE * 170
    objects = [
        add(name_of(k), f"type {k} {wide[:490]}", wide, valid_until=OLD, word="zebra") for k in range(80)
    ]
    name = await agent.session(add("hub"), title=wide[:512])
    await agent.evolve(name, *objects, message=WIDE * 1300, extensions=["temporal"])
    relations = [
        relate(f"r{k:04}{wide[:400]}", "hub", name_of(k), relation_type=wide[:400]) for k in range(80)
    ]
    await agent.evolve(name, *relations, message=WIDE * 1300)
    full: dict[str, Any] = {"session_id": name, "limit": 500}
    hits = await agent.pages("search_knowledge", "hits", query="zebra", **full)
    assert {hit["object_id"] for hit in hits} == {name_of(k) for k in range(80)}
    assert len(await agent.pages("list_versions", "versions", **full)) == 4
    assert len(await agent.pages("explain_knowledge", "relations", object_id="hub", **full)) == 80
    compared = await agent.pages("compare_versions", "objects", **full)
    assert len(compared) == 80
    found = await agent.pages("validate_knowledge", "diagnostics", extensions=["temporal"], **full)
    assert len(found) == 80
    told = await agent.ok("explain_knowledge", session_id=name)
    assert told["counts"]["types"] == 82 > len(told["counts"]["by_type"]) > 0
    seen: list[str] = []
    walk: dict[str, Any] = {"session_id": name, "seed_ids": ["hub"], "max_objects": 500}
    while True:
        page = await agent.ok("query_subgraph", **walk)
        seen += ids(page["objects"]) + ids(page["relations"])
        if "next_cursor" not in page:
            break
        walk["cursor"] = page["next_cursor"]
    assert len(seen) == len(set(seen)) == 161
    first = (await agent.pages("list_versions", "versions", session_id=name))[-1]["version_id"]
    account = await agent.ok("explain_diff", session_id=name, target_version_id=first)
    assert account["totals"]["added"] == 161 > len(account["added"]) > 0
    for title in (f"{k}{wide}"[:512] for k in range(30)):
        await agent.ok("create_branch", session_id=name, title=title)
    assert len(await agent.pages("list_sessions", "sessions", limit=500)) >= 31
    gone = await agent.evolve(name, {"op": "remove_object", "object_id": "hub"})
    assert gone["changed"]["removed"]["count"] == 81 > len(gone["cascade_removed_relations"]) > 0
    listed = await agent.pages("list_inference_conflicts", "conflicts", limit=500, peek=True)
    assert listed == []
    await agent.until("runtime_status", lambda s: s["queues"]["open_conflicts"].get("temporal", 0) >= 80)
    await agent.resource("cks://conflicts/temporal")


async def test_objects_larger_than_an_answer(agent: Agent) -> None:
    fields = {f"field {k}": "x" * 2000 for k in range(100)}
    name = await agent.session(add("big", **fields), add("small"), relate("r", "big", "small"))
    told = await agent.ok("explain_knowledge", session_id=name, object_id="big")
    assert told["object"]["structure"] == fields
    changed = await agent.evolve(name, update("big", **{key: value + "y" for key, value in fields.items()}))
    assert changed["changed"]["updated"]["count"] == 1
    (entry,) = await agent.pages("compare_versions", "objects", session_id=name)
    assert entry["object_id"] == "big" and entry["truncated"] is True and len(entry["changes"]) > 1
    account = await agent.ok(
        "explain_diff",
        session_id=name,
        target_version_id=(await agent.ok("compare_versions", session_id=name))["from_version_id"],
    )
    assert account["modified"][0]["truncated"] is True
    walked = await agent.ok("query_subgraph", session_id=name, seed_ids=["big"])
    assert walked["objects"][0]["truncated"] is True and walked["truncated"] is True
    rest = await agent.ok("query_subgraph", session_id=name, seed_ids=["big"], cursor=walked["next_cursor"])
    assert ids(rest["objects"]) == ["small"] and ids(rest["relations"]) == ["r"] and not rest["truncated"]
    branch = (await agent.ok("create_branch", session_id=name))["session_id"]
    for session, end in ((name, "a"), (branch, "b")):
        await agent.evolve(session, update("big", **{key: end + value for key, value in fields.items()}))
    clash = await agent.ok("merge_branch", target_session_id=name, source_session_id=branch)
    assert [c["object_id"] for c in clash["conflicts"]] == ["big"]
    long_field = {"text": "é" * 100_000}
    await agent.evolve(name, add("long", **long_field))
    compared = await agent.ok("compare_versions", session_id=name)
    change = compared["objects"][0]["changes"]["text"]
    assert change["truncated"] is True and len(change["to"].encode()) <= 2048
    assert (await agent.object(name, "long"))["structure"] == long_field


async def test_errors_are_small_however_long_the_input_is(agent: Agent) -> None:
    long = WIDE * 50_000
    name = await agent.session(add("a"))
    for tool, arguments in (
        ("explain_knowledge", {"session_id": long}),
        ("explain_knowledge", {"session_id": name, "object_id": long}),
        ("query_subgraph", {"session_id": name, "seed_ids": [long]}),
        ("compare_versions", {"from": long}),
        ("list_versions", {"cursor": long}),
        ("evolve_knowledge", {"operations": [{"op": long}]}),
        ("evolve_knowledge", {"operations": [], long: 1}),
        (
            "evolve_knowledge",
            {"operations": [{"op": "add_object", "identity": {"id": long, "type": "T", "name": "n"}}]},
        ),
        ("evolve_knowledge", {"operations": [], "expected_head": long}),
        ("validate_knowledge", {"extensions": [long]}),
        ("search_knowledge", {"query": long}),
        (long[:1000], {}),
    ):
        result = await agent.answer(tool, arguments)
        assert result.is_error, tool[:40]
    problems = [{"identity": {"id": f"{k}{WIDE * 160}"}} for k in range(300)]
    error = await agent.refused(
        "evolve_knowledge", "invalid_knowledge", session_id=name, knowledge={"objects": problems}
    )
    assert 0 < len(error["details"]["diagnostics"]) <= 100


async def test_limits_are_refused_as_too_large_and_write_nothing(agent: Agent) -> None:
    name = await agent.session(add("a"))
    head = await agent.head(name)
    for knowledge in (
        {"objects": [whole(f"o{k}") for k in range(701)]},
        {"objects": [whole(f"o{k}") for k in range(700)]},  # and the one that is there
        {"objects": [whole("big", text="x" * 300_001)]},
        {"objects": [whole(f"o{k}", text="x" * 200_000) for k in range(16)]},
    ):
        error = await agent.refused("evolve_knowledge", "too_large", session_id=name, knowledge=knowledge)
        assert "CKS_MAX" in error["hint"]
    operations = [add(f"o{k}") for k in range(700)]
    await agent.refused("evolve_knowledge", "too_large", session_id=name, operations=operations)
    await agent.refused(
        "evolve_knowledge", "too_large", session_id=name, operations=[add("b", text="x" * 300_001)]
    )
    await agent.refused(
        "evolve_knowledge", "too_large", session_id=name, operations=[update("a", text="x" * 300_001)]
    )
    deep: Any = "bottom"
    for _ in range(100):
        deep = [deep]
    error = await agent.refused(
        "evolve_knowledge", "invalid_knowledge", session_id=name, operations=[add("d", x=deep)]
    )
    assert "deep" in error["message"]
    assert await agent.head(name) == head
    told = await agent.evolve(name, *operations[:699])
    assert told["changed"]["added"]["count"] == 699
    assert (await agent.evolve(name, update("a", x=1)))["no_op"] is False
    await agent.refused("evolve_knowledge", "too_large", session_id=name, operations=[add("one more")])


async def test_a_session_over_a_lowered_limit_can_still_shrink(agent: Agent) -> None:
    async def edit(*operations: Any) -> Any:
        return (await agent.evolve("overfull", *operations))["changed"]

    more = {"session_id": "overfull", "operations": [add("more")]}
    await agent.refused("evolve_knowledge", "too_large", **more)
    assert (await edit({"op": "remove_object", "object_id": "o1"}))["removed"]["ids"] == ["o1"]
    await edit(update("o2", x=1), infer("i", ["o2"], "o3", 1), {"op": "remove_object", "object_id": "o4"})
    await agent.refused("evolve_knowledge", "too_large", **more)
