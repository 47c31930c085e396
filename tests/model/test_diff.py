"""Field changes with their cuts, object and graph diffs, and the readable account."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.model.canon import Json, canonical
from cks_runtime.model.diff import (
    changed_json,
    field_changes,
    field_name,
    fields,
    graph_diff,
    object_diff,
    shorten,
    shorten_object,
)
from cks_runtime.model.explain_diff import explain
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.knowledge import KObject, make_object


def made(id: str = "x", type: str = "Concept", name: str = "X", **structure: object) -> KObject:
    return make_object(id, type, name, structure)


def graph(*objects: KObject) -> Graph:
    return EMPTY_GRAPH.with_changes({obj.id: obj for obj in objects})


# ---- fields


def test_fields_are_the_keys_the_name_and_the_type() -> None:
    assert fields(made(f=1)) == {"identity.name": "X", "identity.type": "Concept", "f": 1}


def test_a_field_that_a_side_lacks_has_no_key() -> None:
    assert field_changes(made(f=1, g=None), made(g=0, h=2)) == {
        "f": {"from": 1},
        "g": {"from": None, "to": 0},
        "h": {"to": 2},
    }
    assert field_changes(None, made(f=1)) == {
        "f": {"to": 1},
        "identity.name": {"to": "X"},
        "identity.type": {"to": "Concept"},
    }
    assert field_changes(None, None) == {}
    assert field_changes(made(f=1), made(f=1)) == {}


def test_equality_is_that_of_json_not_of_python() -> None:
    assert field_changes(made(f=1), made(f=True)) == {"f": {"from": 1, "to": True}}
    assert field_changes(made(f=[0]), made(f=[False])) == {"f": {"from": [0], "to": [False]}}
    assert field_changes(made(f=1, g=0), made(f=1.0, g=0)) == {}


def test_the_base_stands_beside_the_sides_that_differ() -> None:
    assert field_changes(made(f=1, g=1), made(f=2, g=1), base=made(f=0, g=0)) == {
        "f": {"from": 1, "to": 2, "base": 0}
    }
    assert field_changes(made(f=1), made(f=2), base=made()) == {"f": {"from": 1, "to": 2}}


@pytest.mark.parametrize("key", ["identity.name", "identity.type", "structure.identity.name"])
def test_a_key_named_like_the_name_stays_apart_from_it(key: str) -> None:
    assert field_name(key) == f"structure.{key}"
    found = fields(make_object("x", "Concept", "X", {key: 1}))
    assert found[f"structure.{key}"] == 1
    assert found["identity.name"] == "X"
    assert field_name("name") == "name"
    assert field_name("structure.f") == "structure.f"


@given(st.lists(st.sampled_from(["identity.name", "structure.", "identity.type", "f"]), max_size=4))
def test_no_two_keys_are_one_field(parts: list[str]) -> None:
    keys = {"".join(parts[:end]) for end in range(len(parts) + 1)}
    keys |= {"structure." + key for key in keys}
    names = {field_name(key) for key in keys}
    assert len(names) == len(keys)
    assert not names & {"identity.name", "identity.type"}


# ---- cuts


@pytest.mark.parametrize(
    ("value", "length"), [("a" * 2046, 2046), ("a" * 2047, 2046), ("é" * 1023, 1023), ("é" * 1024, 1023)]
)
def test_text_is_cut_by_bytes_of_its_json_and_never_inside_a_character(value: str, length: int) -> None:
    shown, was_cut = shorten(value)
    assert isinstance(shown, str)
    assert (len(shown), was_cut) == (length, length < len(value))


json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-100, 100) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('ab\n"é'), inner, max_size=5),
)


@given(json_value, st.integers(2, 60))
def test_what_is_shown_fits_and_a_cut_value_is_the_beginning_of_its_text(value: Json, cut: int) -> None:
    shown, was_cut = shorten(value, cut)
    if not was_cut:
        assert canonical(shown) == canonical(value)
        assert len(canonical(value)) <= cut
        return
    assert len(canonical(value)) > cut
    assert isinstance(shown, str)
    assert len(canonical(shown)) <= cut
    text = value if isinstance(value, str) else canonical(value).decode()
    assert text.startswith(shown)
    assert len(canonical(text[: len(shown) + 1])) > cut


def test_a_cut_field_says_so_beside_its_values() -> None:
    changes = field_changes(made(f="a" * 3000, g=1), made(f="b", g=2))
    assert changes["f"] == {"from": "a" * 2046, "to": "b", "truncated": True}
    assert changes["g"] == {"from": 1, "to": 2}
    (change,) = field_changes(made(f=list(range(2000))), made(f=[])).values()
    assert isinstance(change, dict)
    assert str(change["from"]).startswith("[0,1,2,")


def test_an_object_is_cut_value_by_value() -> None:
    assert shorten_object(made(f=1)) == made(f=1).as_json()
    shown = shorten_object(made(f="a" * 3000, g=1))
    assert shown["truncated"] is True
    assert shown["structure"] == {"f": "a" * 2046, "g": 1}


# ---- objects and graphs


def test_an_object_diff_says_what_was_done() -> None:
    assert object_diff(made(f=1), made(f=1)) is None
    assert object_diff(None, None) is None
    assert object_diff(made(f=1), made(f=2, name="N")) == {
        "action": "modified",
        "type": "Concept",
        "name": "N",
        "changes": {"f": {"from": 1, "to": 2}, "identity.name": {"from": "X", "to": "N"}},
    }
    added = object_diff(None, made(f=1))
    assert added is not None
    assert added["action"] == "added"
    removed = object_diff(made(f=1), None)
    assert removed == {"action": "removed", "type": "Concept", "name": "X", "changes": {}}


def test_a_graph_diff_parts_what_differs() -> None:
    before = graph(made("a"), made("b", f=1), made("c"))
    after = graph(made("b", f=2), made("c"), made("e"), made("d"))
    diff = graph_diff(before, after)
    assert [id for id, _, _ in diff.added] == ["d", "e"]
    assert [id for id, _, _ in diff.updated] == ["b"]
    assert [id for id, _, _ in diff.removed] == ["a"]
    assert changed_json(diff) == {
        "added": {"count": 2, "ids": ["d", "e"]},
        "updated": {"count": 1, "ids": ["b"]},
        "removed": {"count": 1, "ids": ["a"]},
    }
    assert diff
    assert not graph_diff(before, before)


def test_changed_lists_the_first_200_ids() -> None:
    after = graph(*(made(f"o{index:04}") for index in range(250)))
    assert changed_json(graph_diff(EMPTY_GRAPH, after))["added"] == {
        "count": 250,
        "ids": [f"o{index:04}" for index in range(200)],
    }


# ---- the readable account


def step(id: str, conclusion: str = "y", **more: object) -> KObject:
    structure = {
        "premises": ["x"],
        "conclusion": conclusion,
        "operator": "deductive",
        "confidence": 0.5,
        **more,
    }
    return make_object(id, "InferenceStep", id, structure)


def relation(*ends: str, kind: str = "knows", **more: object) -> KObject:
    return make_object("r", "Relation", "R", {"participants": list(ends), "relation_type": kind, **more})


def account(before: list[KObject], after: list[KObject], base: list[KObject] | None = None) -> dict[str, Any]:
    found = explain(graph(*before), graph(*after), graph(*base) if base is not None else None)
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def test_nothing_differs() -> None:
    assert account([made()], [made()]) == {
        "summary": "Nothing differs.",
        "added": [],
        "removed": [],
        "modified": [],
        "relinked_relations": [],
        "inference_changes": [],
    }


def test_added_removed_and_modified_objects() -> None:
    found = account([made("a"), made("b", f=1)], [made("b", f=2), made("c", name="C")], [made("b", f=0)])
    assert found["added"] == [{"object_id": "c", "type": "Concept", "name": "C"}]
    assert found["removed"] == [{"object_id": "a", "type": "Concept", "name": "X"}]
    assert found["modified"] == [
        {"object_id": "b", "type": "Concept", "name": "X", "changes": {"f": {"from": 1, "to": 2, "base": 0}}}
    ]
    assert found["summary"].splitlines() == [
        "1 object added, 1 object removed, 1 object modified.",
        "Added 'Concept' 'C' ('c').",
        "Removed 'Concept' 'X' ('a').",
        "Modified 'Concept' 'X' ('b'): f.",
    ]


def test_relinked_relations() -> None:
    found = account([relation("x", "y")], [relation("x", "z", weight=1)])
    assert found["relinked_relations"] == [
        {
            "object_id": "r",
            "relation_type": {"from": "knows", "to": "knows"},
            "participants": {"from": ["x", "y"], "to": ["x", "z"]},
        }
    ]
    assert found["modified"][0]["changes"].keys() == {"participants", "weight"}
    line = "Relation 'r' joined 'knows' ['x', 'y'] and now joins 'knows' ['x', 'z']."
    assert line in found["summary"].splitlines()
    assert account([relation("x", "y")], [relation("x", "y", weight=1)])["relinked_relations"] == []
    found = account([relation("x", "y")], [relation("x", "y", kind="likes")])
    assert found["relinked_relations"][0]["relation_type"] == {"from": "knows", "to": "likes"}


def changes_of(before: KObject | None, after: KObject | None) -> list[tuple[str, str]]:
    found = account([before] if before else [], [after] if after else [])
    assert len(found["summary"].splitlines()) > 1
    return [(entry["change"], entry["conclusion"]) for entry in found["inference_changes"]]


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        (None, step("s"), [("added", "y")]),
        (step("s"), None, [("removed", "y")]),
        (step("s"), step("s", superseded_by="t"), [("superseded", "y")]),
        (step("s", superseded_by="t"), step("s", superseded_by="u"), [("superseded", "y")]),
        (step("s", superseded_by="t"), step("s"), [("reactivated", "y")]),
        (step("s", superseded_by="t"), step("s", superseded_by=None), [("reactivated", "y")]),
        (step("s"), step("s", superseded_by=None), []),
        (step("s"), step("s", confidence=0.9), [("confidence", "y")]),
        (step("s"), step("s", premises=["z"], confidence=0.9), [("premises", "y"), ("confidence", "y")]),
        (step("s"), step("s", conclusion="z"), [("removed", "y"), ("added", "z")]),
        (step("s"), step("s", justification="seen"), []),
        (step("s"), made("s"), [("removed", "y")]),
        (made("s"), step("s"), [("added", "y")]),
        (made("s"), made("s", f=1), []),
    ],
)
def test_inference_changes(
    before: KObject | None, after: KObject | None, changes: list[tuple[str, str]]
) -> None:
    assert changes_of(before, after) == changes


def test_an_inference_change_carries_what_it_means() -> None:
    after = step("s", superseded_by="t", superseded_reason="t is newer")
    (entry,) = account([step("s")], [after])["inference_changes"]
    assert entry == {
        "object_id": "s",
        "conclusion": "y",
        "change": "superseded",
        "superseded_by": {"from": None, "to": "t"},
        "superseded_reason": "t is newer",
    }
    (entry,) = account([], [step("s")])["inference_changes"]
    assert (entry["premises"], entry["operator"], entry["confidence"]) == (["x"], "deductive", 0.5)


def test_the_lists_are_whole_and_the_summary_is_short() -> None:
    found = account([], [made(f"o{index:04}") for index in range(1000)])
    assert len(found["added"]) == 1000
    lines = found["summary"].splitlines()
    assert len(lines) == 12
    assert lines[-1] == "… and 990 more objects added."
    assert [entry["object_id"] for entry in found["added"]] == sorted(e["object_id"] for e in found["added"])
