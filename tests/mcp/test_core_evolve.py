"""evolve_knowledge through the real server: every operation, all or nothing, heads, cascades and whole objects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from serving import Agent, add, identity, infer, relate, remove, serving, settle, update, whole

NOBODY = "0" * 64


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    async with serving(tmp_path_factory.mktemp("evolve") / "cks.db") as agent:
        yield agent


async def test_a_delta_comes_back_never_the_graph(agent: Agent) -> None:
    name = await agent.session()
    made = await agent.evolve(name, add("sun"), add("earth"), relate("r1", "earth", "sun"))
    assert made["session_id"] == name and made["no_op"] is False
    assert made["changed"] == {
        "added": {"count": 3, "ids": ["earth", "r1", "sun"]},
        "updated": {"count": 0, "ids": []},
        "removed": {"count": 0, "ids": []},
    }
    assert made["cascade_removed_relations"] == made["cascade_removed_records"] == made["diagnostics"] == []
    assert made["version_id"] == await agent.head(name) and len(made["version_id"]) == 64
    changed = await agent.evolve(name, update("sun", mass=1), remove("earth"))
    assert changed["changed"]["updated"]["ids"] == ["sun"]
    assert changed["changed"]["removed"] == {"count": 2, "ids": ["earth", "r1"]}
    assert changed["cascade_removed_relations"] == ["r1"]


async def test_every_operation(agent: Agent) -> None:
    name = await agent.session(add("sun", mass=2, colour="white", old=1), add("earth"), add("claim", "Claim"))
    await agent.evolve(name, update("sun", mass=3, old=None))
    assert (await agent.object(name, "sun"))["structure"] == {"mass": 3, "colour": "white"}
    await agent.evolve(name, update("sun", mode="replace", mass=4, none=None))
    assert (await agent.object(name, "sun"))["structure"] == {"mass": 4, "none": None}
    await agent.evolve(name, {"op": "rename_object", "object_id": "sun", "new_name": "Sol"})
    assert (await agent.object(name, "sun"))["identity"] == identity("sun", name="Sol")
    await agent.evolve(name, relate("r1", "earth", "sun", since=1543))
    assert (await agent.object(name, "r1"))["structure"] == {
        "participants": ["earth", "sun"],
        "relation_type": "orbits",
        "since": 1543,
    }
    await agent.evolve(name, {"op": "remove_relation", "relation_id": "r1"})
    assert [o["identity"]["id"] for o in (await agent.export(name))["objects"]] == ["claim", "earth", "sun"]
    first = infer("i1", ["sun"], "claim", 0.4, justification="seen", alternatives_considered=["chance"])
    await agent.evolve(name, first, infer("i2", ["earth"], "claim", 0.9))
    assert (await agent.object(name, "i1"))["structure"] == {
        "premises": ["sun"],
        "conclusion": "claim",
        "operator": "deductive",
        "confidence": 0.4,
        "justification": "seen",
        "alternatives_considered": ["chance"],
        "superseded_by": None,
    }
    await agent.evolve(name, settle("claim", "i2", "closer look"))
    lost = (await agent.object(name, "i1"))["structure"]
    assert (lost["superseded_by"], lost["superseded_reason"]) == ("i2", "closer look")
    await agent.evolve(name, infer("i3", ["earth"], "claim", 0.95, supersedes="i2"))
    assert (await agent.object(name, "i2"))["structure"]["superseded_by"] == "i3"


WRONG: list[tuple[str, Any, str]] = [
    ("no list", {"op": "add_object"}, "operations"),
    ("no object", ["add_object"], "operations[0]"),
    ("no op", [{"identity": {}}], "operations[0].op"),
    ("unknown op", [{"op": "drop_table"}], "operations[0].op"),
    ("op of a wrong type", [{"op": ["add_object"]}], "operations[0].op"),
    ("unknown argument", [add("a"), {**add("b"), "when": 1}], "operations[1]"),
    ("missing argument", [{"op": "add_object"}], "operations[0].identity"),
    (
        "empty name",
        [add("a"), {"op": "rename_object", "object_id": "a", "new_name": ""}],
        "operations[1].new_name",
    ),
    (
        "patch",
        [add("a"), {"op": "update_object", "object_id": "a", "structure_patch": 3}],
        "operations[1].structure_patch",
    ),
    ("mode", [add("a"), update("a", mode="deep")], "operations[1].mode"),
    ("participants", [relate("r", "a", "b") | {"participants": "a"}], "operations[0].participants"),
    ("no relation", [add("a"), {"op": "remove_relation", "relation_id": "a"}], "operations[1].relation_id"),
    ("premises", [infer("i", [], "a", 1.0) | {"premises": [1]}], "operations[0].premises[0]"),
    ("supersedes no step", [add("a"), infer("i", ["a"], "a", 1, supersedes="a")], "operations[1].supersedes"),
    ("winner no step", [add("a"), settle("a", "a")], "operations[1].winner_id"),
    ("reasoning", [add("a"), settle("a", "a") | {"reasoning": 5}], "operations[1].reasoning"),
]


@pytest.mark.parametrize(
    "operations, argument", [case[1:] for case in WRONG], ids=[case[0] for case in WRONG]
)
async def test_a_wrong_operation_names_itself_and_its_argument(
    agent: Agent, operations: Any, argument: str
) -> None:
    error = await agent.refused(
        "evolve_knowledge", "invalid_parameter", session_id="fresh", create=True, operations=operations
    )
    assert error["details"]["argument"] == argument and argument in error["message"]
    await agent.refused("explain_knowledge", "session_not_found", session_id="fresh")


async def test_what_is_missing_or_broken_changes_nothing(agent: Agent) -> None:
    name = await agent.session(add("sun"), add("earth"), infer("i1", ["sun"], "earth", 0.5))
    head = await agent.head(name)

    async def refuses(code: str, *operations: Any) -> dict[str, Any]:
        return await agent.refused(
            "evolve_knowledge", code, session_id=name, operations=[update("sun", x=1), *operations]
        )

    missing = await refuses("object_not_found", update("moon", x=1))
    assert missing["details"] == {"operation": 1, "argument": "operations[1].object_id", "object_id": "moon"}
    for operation in (
        remove("moon"),
        settle("moon", "i1"),
        settle("earth", "i9"),
        infer("i2", ["sun"], "earth", 1, supersedes="i9"),
    ):
        await refuses("object_not_found", operation)
    codes = {
        "CKS-STRUCT-UNIQUE-IDENTITY": add("sun"),
        "CKS-STRUCT-DANGLING-REF": relate("r", "sun", "moon"),
        "CKS-STRUCT-FORMAT": add("bad", participants=["sun", "earth"]),
        "CKS-EXT-INFERENCE-INTEGRITY": infer("i2", ["moon"], "earth", 1),
        "CKS-EXT-CONFIDENCE-BOUNDS": infer("i2", ["sun"], "earth", 1.5),
        "CKS-EXT-SUPERSESSION-CHAIN": update("i1", superseded_by="sun"),
        "CKS-EXT-TEMPORAL-VALIDITY": update("sun", valid_until="soon"),
        "CKS-EXT-VERIFICATION-RECORD": add("v", "VerificationRecord", url="http://a", subject_id="sun"),
    }
    for code, operation in codes.items():
        error = await refuses("invalid_knowledge", operation)
        found = error["details"]["diagnostics"]
        assert code in [diagnostic["code"] for diagnostic in found], (code, found)
        for diagnostic in found:
            assert diagnostic["severity"] == "ERROR" and diagnostic["message"] and diagnostic["location"]
    for identity_ in (
        {"id": "a", "type": "T"},
        {"id": "", "type": "T", "name": "n"},
        {"id": "x" * 513, "type": "T", "name": "n"},
        {"id": "a", "type": "T", "name": "n", "more": 1},
    ):
        await refuses("invalid_knowledge", {"op": "add_object", "identity": identity_})
    assert await agent.head(name) == head
    assert (await agent.object(name, "sun"))["structure"] == {}


async def test_the_default_session_and_a_session_that_is_made(agent: Agent) -> None:
    untouched = await agent.ok("explain_knowledge")
    assert (untouched["session_id"], untouched["counts"]["objects"]) == ("main", 0)
    assert [
        s["session_id"] for s in await agent.pages("list_sessions", "sessions") if s["session_id"] == "main"
    ] == []
    made = await agent.ok("evolve_knowledge", operations=[add("sun")], title="The default")
    assert made["session_id"] == "main"
    assert (await agent.ok("explain_knowledge"))["title"] == "The default"
    await agent.refused("evolve_knowledge", "session_not_found", session_id="not-yet", operations=[add("a")])
    await agent.ok(
        "evolve_knowledge", session_id="not-yet", create=True, title="First", operations=[add("a")]
    )
    await agent.ok(
        "evolve_knowledge", session_id="not-yet", create=True, title="Second", operations=[add("b")]
    )
    told = await agent.ok("explain_knowledge", session_id="not-yet")
    assert (told["title"], told["counts"]["by_type"]) == ("First", {"Body": 2})
    empty = await agent.ok("evolve_knowledge", session_id="empty", create=True, operations=[])
    assert (
        empty["no_op"] is True
        and (await agent.ok("explain_knowledge", session_id="empty"))["state"] == "open"
    )
    for bad in ("", "-a", "a@b", "a" * 65, "é", "a b", "../x"):
        error = await agent.refused("evolve_knowledge", "invalid_parameter", session_id=bad, operations=[])
        assert error["details"] == {"argument": "session_id"}


async def test_expected_head_is_compare_and_swap(agent: Agent) -> None:
    name = await agent.session(add("sun"))
    old = await agent.head(name)
    new = (await agent.evolve(name, update("sun", a=1), expected_head=old))["version_id"]
    error = await agent.refused(
        "evolve_knowledge", "head_moved", session_id=name, operations=[update("sun", a=2)], expected_head=old
    )
    assert error["details"]["current_head"] == new and new in error["message"]
    assert (await agent.evolve(name, update("sun", a=3), expected_head=new[:8].upper()))["no_op"] is False
    for wrong in ("", "1234567", "g" * 64, "0" * 65):
        error = await agent.refused(
            "evolve_knowledge", "invalid_parameter", session_id=name, operations=[], expected_head=wrong
        )
        assert error["details"] == {"argument": "expected_head"}
    await agent.refused(
        "evolve_knowledge", "head_moved", session_id=name, operations=[], expected_head=NOBODY
    )
    fresh = await agent.refused(
        "evolve_knowledge",
        "head_moved",
        session_id="new-one",
        create=True,
        operations=[],
        expected_head=NOBODY,
    )
    await agent.ok(
        "evolve_knowledge",
        session_id="new-one",
        create=True,
        operations=[add("a")],
        expected_head=fresh["details"]["current_head"],
    )


async def test_what_changes_nothing_makes_no_version(agent: Agent) -> None:
    name = await agent.session(add("sun", mass=1.0))
    head = await agent.head(name)
    for operations in (
        [],
        [update("sun", mass=1)],
        [update("sun", mass=2), update("sun", mass=1)],
        [add("x"), remove("x")],
    ):
        told = await agent.evolve(name, *operations)
        assert told["no_op"] is True and told["version_id"] == head
        assert {part["count"] for part in told["changed"].values()} == {0}
    told = await agent.ok("evolve_knowledge", session_id=name, knowledge={"objects": [whole("sun", mass=1)]})
    assert told["no_op"] is True and len(await agent.pages("list_versions", "versions", session_id=name)) == 2


async def test_author_and_message(agent: Agent) -> None:
    name = await agent.session(add("a"))
    replica = (await agent.ok("runtime_status"))["replica_id"]
    await agent.evolve(name, add("b"), author="Ada", message="why — ü")
    newest, oldest, _ = (await agent.ok("list_versions", session_id=name))["versions"]
    assert (newest["author"], newest["message"]) == ("Ada", "why — ü")
    assert (oldest["author"], oldest["message"]) == (f"tester@{replica}", "")
    for argument, value in (("message", "x" * 4001), ("author", "x" * 201), ("title", "x" * 513)):
        error = await agent.refused(
            "evolve_knowledge", "invalid_parameter", session_id=name, operations=[], **{argument: value}
        )
        assert error["details"]["argument"] == argument


async def test_cascades_and_citations(agent: Agent) -> None:
    name = await agent.session(add("a"), add("b"), add("c"), relate("r1", "a", "b"), relate("r2", "r1", "c"))
    told = await agent.evolve(name, remove("a"))
    assert told["cascade_removed_relations"] == ["r1", "r2"] and told["changed"]["removed"]["count"] == 3
    await agent.evolve(name, infer("i", ["b"], "c", 0.5))
    error = await agent.refused(
        "evolve_knowledge", "invalid_knowledge", session_id=name, operations=[remove("b")]
    )
    assert error["details"]["diagnostics"][0]["code"] == "CKS-EXT-INFERENCE-INTEGRITY"
    told = await agent.evolve(name, remove("i"), remove("b"))
    assert told["changed"]["removed"]["ids"] == ["b", "i"]


async def test_whole_objects_are_added_or_replaced(agent: Agent) -> None:
    name = await agent.session(add("sun", mass=1, colour="white"), add("earth"))
    knowledge = {
        "version": "1.0",
        "objects": [whole("sun", mass=2), {"identity": identity("moon")}],
        "_cks_note": {"ignored": True},
    }
    told = await agent.ok("evolve_knowledge", session_id=name, knowledge=knowledge)
    assert told["changed"]["added"]["ids"] == ["moon"] and told["changed"]["updated"]["ids"] == ["sun"]
    assert (await agent.object(name, "sun"))["structure"] == {"mass": 2}
    assert (await agent.ok("evolve_knowledge", session_id=name, knowledge={"objects": []}))["no_op"] is True
    broken: list[tuple[Any, str]] = [
        ({}, "objects"),
        ({"objects": {}}, "objects"),
        ({"version": "2.0", "objects": []}, "version"),
        ({"objects": [], "extra": 1}, "extra"),
        ({"objects": [whole("a"), whole("a")]}, "'a'"),
        ({"objects": [{"structure": {}}]}, "identity"),
        ({"objects": [5]}, "objects[0]"),
        ({"objects": [{**whole("a"), "more": 1}]}, "more"),
        ({"objects": [whole("a", x=float(2**53) * 3, y=2**53 + 1)]}, "structure.y"),
        ({"objects": [whole("a", participants=["sun", "nobody"], relation_type="r")]}, "nobody"),
    ]
    for value, named in broken:
        error = await agent.refused("evolve_knowledge", "invalid_knowledge", session_id=name, knowledge=value)
        assert named in error["message"], (named, error["message"])
        assert error["details"]["diagnostics"]
    for arguments in (
        {},
        {"operations": [], "knowledge": {"objects": []}},
        {"knowledge": []},
        {"knowledge": "{}"},
    ):
        await agent.refused("evolve_knowledge", "invalid_parameter", session_id=name, **arguments)


async def test_warnings_are_told_only_when_asked_for_and_only_about_the_change(agent: Agent) -> None:
    old = "2020-01-01T00:00:00Z"
    name = await agent.session(
        add("claim"), add("fact"), add("late", valid_until=old), infer("i1", ["fact"], "claim", 0.4)
    )
    silent = await agent.evolve(name, infer("i2", ["fact"], "claim", 0.9))
    assert silent["diagnostics"] == []
    told = await agent.evolve(name, infer("i3", ["fact"], "claim", 0.7), extensions=["inference", "temporal"])
    (found,) = told["diagnostics"]
    assert found["code"] == "CKS-EXT-INFERENCE-CONFIDENCE-CONFLICT" and found["severity"] == "WARNING"
    assert found["message"] == (
        "3 active InferenceStep(s) reach conclusion 'claim' with disagreeing confidence values "
        "(0.9: ['i2'], 0.7: ['i3'], 0.4: ['i1'])."
    )
    assert (found["location"], found["conclusion_id"], found["step_ids"]) == (
        "i1",
        "claim",
        ["i1", "i2", "i3"],
    )
    late = await agent.evolve(name, update("late", note=1), extensions=["temporal"])
    assert [(d["code"], d["valid_until"]) for d in late["diagnostics"]] == [
        ("CKS-EXT-TEMPORAL-VALIDITY", old)
    ]
    rules = [
        add("rule", "FunctionalRelationRule", relation_type="orbits"),
        relate("r1", "claim", "fact"),
        relate("r2", "claim", "late"),
    ]
    found = await agent.evolve(name, *rules, extensions=["contradiction"])
    assert [d["code"] for d in found["diagnostics"]] == ["CKS-EXT-FUNCTIONAL-RELATION"]
    assert sorted(found["diagnostics"][0]["relation_ids"]) == ["r1", "r2"]
    error = await agent.refused(
        "evolve_knowledge", "invalid_parameter", session_id=name, operations=[], extensions=["everything"]
    )
    assert error["details"]["argument"] == "extensions.0"
