"""Three-way merge: the table of cases, resolutions, and what a conflict shows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cks_runtime.model.errors import InvalidParameter
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.knowledge import KObject, Limits, make_object
from cks_runtime.model.merge import Conflicted, Merged, Resolution, merge
from cks_runtime.model.operations import apply_operations
from cks_runtime.model.records import Keyring, record_operations
from cks_runtime.model.validate import check_all

KEYS = Keyring.of(b"a key of these tests")
CASES = json.loads((Path(__file__).parents[1] / "golden" / "merge.json").read_text())["cases"]
SWAPPED = {"branch_a": "branch_b", "branch_b": "branch_a"}
LARGE = Limits(object_bytes=2_000_000)

Case = Mapping[str, Any]


def made(id: str, value: Mapping[str, Any]) -> KObject:
    return make_object(id, value["type"], value["name"], value["structure"], LARGE)


def graph(objects: Mapping[str, Any]) -> Graph:
    return EMPTY_GRAPH.with_changes({id: made(id, value) for id, value in objects.items()})


def concept(**structure: object) -> dict[str, Any]:
    return {"type": "Concept", "name": "X", "structure": structure}


def bases_of(case: Case) -> list[Mapping[str, Any]]:
    return case["bases"] if "bases" in case else [case["base"]]


def run(case: Case, swap: bool = False) -> Merged | Conflicted:
    bases = [graph(base) for base in bases_of(case)]
    a, b = graph(case["a"]), graph(case["b"])
    resolutions: dict[str, Resolution] = {
        id: made(id, answer) if isinstance(answer, dict) else SWAPPED.get(answer, answer) if swap else answer
        for id, answer in case.get("resolutions", {}).items()
    }
    return merge(bases, b, a, KEYS, resolutions) if swap else merge(bases, a, b, KEYS, resolutions)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: Case) -> None:
    for given in [*bases_of(case), case["a"], case["b"]]:
        assert check_all(graph(given), KEYS) == []
    for swap in (False, True):
        outcome = run(case, swap)
        if "merged" in case:
            assert isinstance(outcome, Merged), outcome
            expect_merged(case, outcome, graph(case["b" if swap else "a"]))
        else:
            assert isinstance(outcome, Conflicted), outcome
            expect_conflicts(case, outcome)


def expect_merged(case: Case, outcome: Merged, ours: Graph) -> None:
    wanted = graph(case["merged"])
    assert outcome.graph.objects() == wanted.objects()
    assert outcome.graph.root == wanted.root
    assert list(outcome.restored) == case.get("restored", [])
    assert list(outcome.dropped_relations) == case.get("dropped_relations", [])
    differing = {id for id in (*ours.ids(), *wanted.ids()) if ours.get(id) != wanted.get(id)}
    assert list(outcome.touched) == sorted(differing)
    if "resolutions" not in case:
        for side in (graph(case["a"]), graph(case["b"])):
            for base in (side, graph(bases_of(case)[0])):
                again = merge([base], outcome.graph, side, KEYS)
                assert isinstance(again, Merged)
                assert again.graph == outcome.graph
                assert again.touched == ()


def expect_conflicts(case: Case, outcome: Conflicted) -> None:
    found = outcome.conflicts
    assert {conflict.object_id: conflict.kind for conflict in found} == case["conflicts"]
    assert [conflict.object_id for conflict in found] == sorted(case["conflicts"])
    for id, fields in case.get("fields", {}).items():
        assert [list(conflict.fields) for conflict in found if conflict.object_id == id] == [fields]
    for id, missing in case.get("missing", {}).items():
        assert [list(conflict.missing) for conflict in found if conflict.object_id == id] == [missing]
    for conflict in found:
        assert conflict.fields or conflict.kind == "remove/edit" or conflict.ours == conflict.theirs
        assert bool(conflict.diagnostics) == (conflict.kind == "invalid_together")


def by_id(id: str) -> Case:
    return next(case for case in CASES if case["id"] == id)


# ---- resolutions that are refused


@pytest.mark.parametrize(
    ("resolutions", "named"),
    [
        ({"x": "branch_a", "nobody": "branch_a"}, "nobody"),
        ({"x": "branch_a", "y": None}, "y"),
        ({"x": "ours"}, "x"),
        ({"x": {"identity": {}}}, "x"),
        ({"x": made("y", concept())}, "x"),
        ({"y": "branch_b"}, "y"),
    ],
)
def test_a_resolution_that_answers_nothing_is_refused_by_name(
    resolutions: dict[str, Resolution], named: str
) -> None:
    base = graph({"x": concept(f=0), "y": concept()})
    ours, theirs = (graph({"x": concept(f=value), "y": concept()}) for value in (1, 2))
    with pytest.raises(InvalidParameter) as refused:
        merge([base], ours, theirs, KEYS, resolutions)
    assert refused.value.details["object_id"] == named
    assert repr(named) in refused.value.message


def test_a_relation_that_goes_with_a_dropped_object_is_no_conflict_to_answer() -> None:
    case = by_id("new-relation-to-removed-and-edited")
    with pytest.raises(InvalidParameter, match="'r'"):
        run({**case, "resolutions": {"y": None, "r": "branch_a"}})
    outcome = run({**case, "resolutions": {"y": None}})
    assert isinstance(outcome, Merged)
    assert outcome.dropped_relations == ("r",)


def test_a_merge_without_any_base_counts_everything_as_new() -> None:
    ours, theirs = graph({"x": concept(f=1), "y": concept()}), graph({"x": concept(f=1), "z": concept()})
    outcome = merge([], ours, theirs, KEYS)
    assert isinstance(outcome, Merged)
    assert sorted(outcome.graph.ids()) == ["x", "y", "z"]


# ---- what a conflict shows


def conflict_json(case: Case) -> list[dict[str, Any]]:
    outcome = run(case)
    assert isinstance(outcome, Conflicted)
    shown: list[dict[str, Any]] = json.loads(json.dumps([c.as_json() for c in outcome.conflicts]))
    return shown


def test_an_entry_shows_the_base_and_both_diffs() -> None:
    assert conflict_json(by_id("same-field-and-another")) == [
        {
            "object_id": "x",
            "kind": "edit/edit",
            "fields": ["f"],
            "base": {"identity": {"id": "x", "type": "Concept", "name": "X"}, "structure": {"f": 0, "g": 0}},
            "target_diff": {
                "action": "modified",
                "type": "Concept",
                "name": "X",
                "changes": {"f": {"from": 0, "to": 1}, "g": {"from": 0, "to": 5}},
            },
            "source_diff": {
                "action": "modified",
                "type": "Concept",
                "name": "X",
                "changes": {"f": {"from": 0, "to": 2}},
            },
        }
    ]


def test_an_entry_of_a_dangling_relation_names_what_is_missing() -> None:
    (entry,) = conflict_json(by_id("new-relation-to-removed"))
    assert entry["base"] is None
    assert entry["missing"] == ["y"]
    assert entry["target_diff"]["action"] == "added"
    assert entry["target_diff"]["changes"]["participants"] == {"to": ["x", "y"]}
    assert entry["source_diff"] is None


def test_an_entry_of_a_removal_and_an_edit() -> None:
    (entry,) = conflict_json(by_id("remove-edit"))
    assert entry["target_diff"] == {"action": "removed", "type": "Concept", "name": "X", "changes": {}}
    assert entry["source_diff"]["changes"] == {"f": {"from": 0, "to": 1}}


def test_an_entry_of_a_cycle_carries_the_diagnostics() -> None:
    entries = conflict_json(by_id("supersession-cycle"))
    assert [entry["object_id"] for entry in entries] == ["s", "t"]
    assert {d["code"] for entry in entries for d in entry["diagnostics"]} == {"CKS-EXT-SUPERSESSION-CHAIN"}


def test_where_bases_disagree_the_entry_has_all_of_them_and_only_shared_values_as_from() -> None:
    (entry,) = conflict_json(by_id("criss-cross-disagreeing-field"))
    assert entry["base"] is None
    assert sorted(base["structure"]["f"] for base in entry["bases"]) == [1, 2]
    assert entry["target_diff"]["changes"] == {"f": {"to": 1}}
    assert entry["source_diff"]["changes"] == {"f": {"to": 2}, "g": {"from": 0, "to": 5}}
    (entry,) = conflict_json(by_id("criss-cross-in-one-base-only-removed"))
    assert entry["bases"][0] is None
    assert entry["target_diff"]["action"] == "removed"
    assert entry["source_diff"]["action"] == "modified"


def test_long_values_are_cut() -> None:
    base, ours, theirs = ({"x": concept(f=letter * 5000)} for letter in "abc")
    (entry,) = conflict_json({"base": base, "a": ours, "b": theirs})
    change = entry["target_diff"]["changes"]["f"]
    assert change["truncated"] is True
    assert entry["base"]["truncated"] is True
    assert len(json.dumps(entry)) < 12_000


# ---- sizes


def test_edits_that_are_too_large_together_are_a_conflict() -> None:
    base = {"x": concept()}
    ours, theirs = {"x": concept(f="a" * 700_000)}, {"x": concept(g="b" * 700_000)}
    case: dict[str, Any] = {"base": base, "a": ours, "b": theirs}
    outcome = run(case)
    assert isinstance(outcome, Conflicted)
    (conflict,) = outcome.conflicts
    assert (conflict.kind, conflict.fields) == ("invalid_together", ("f", "g"))
    assert "1048576" in conflict.diagnostics[0].message
    settled = run({**case, "resolutions": {"x": "branch_b"}})
    assert isinstance(settled, Merged)
    assert settled.graph == graph(theirs)


# ---- verification records

SUBJECT = graph({"x": concept(f=0), "y": concept()})


def verified(base: Graph, record: str, subject: str = "x", at_ms: int = 0) -> Graph:
    """`base` with a signed record of the subject and its link."""
    operations = record_operations(
        record,
        f"link-{record}",
        base[subject],
        "https://example.org/",
        "https://example.org/",
        200,
        at_ms,
        "automated_http_check",
        KEYS,
    )
    return apply_operations(base, operations).graph


def edited(base: Graph, *operations: dict[str, Any]) -> Graph:
    after = apply_operations(base, list(operations)).graph
    assert check_all(after, KEYS) == []
    return after


def patched(id: str, **patch: object) -> dict[str, Any]:
    return {"op": "update_object", "object_id": id, "structure_patch": patch}


def test_a_record_stays_valid_when_the_other_side_edits_its_subject() -> None:
    ours, theirs = verified(SUBJECT, "v"), edited(SUBJECT, patched("x", f=1))
    for a, b in [(ours, theirs), (theirs, ours)]:
        outcome = merge([SUBJECT], a, b, KEYS)
        assert isinstance(outcome, Merged)
        assert check_all(outcome.graph, KEYS) == []


def test_a_record_is_one_field_as_a_whole() -> None:
    base = verified(verified(verified(SUBJECT, "v"), "v1"), "v2")
    ours, theirs = (edited(base, patched("v", superseded_by=next)) for next in ("v1", "v2"))
    outcome = merge([base], ours, theirs, KEYS)
    assert isinstance(outcome, Conflicted)
    assert [(c.object_id, c.kind, c.fields) for c in outcome.conflicts] == [
        ("v", "edit/edit", ("superseded_by",))
    ]
    settled = merge([base], ours, theirs, KEYS, {"v": "branch_b"})
    assert isinstance(settled, Merged)
    assert settled.graph == theirs


def test_keeping_a_record_of_a_removed_subject_brings_back_the_subject_and_the_link() -> None:
    base = verified(SUBJECT, "v")
    refreshed = edited(verified(base, "w", at_ms=1), patched("v", superseded_by="w"))
    removed = edited(base, {"op": "remove_object", "object_id": "x"})
    outcome = merge([base], refreshed, removed, KEYS)
    assert isinstance(outcome, Conflicted)
    assert {c.object_id: c.kind for c in outcome.conflicts} == {
        "v": "remove/edit",
        "w": "dangling",
        "link-w": "dangling",
    }
    kept: dict[str, Resolution] = dict.fromkeys(("v", "w", "link-w"), "branch_a")
    settled = merge([base], refreshed, removed, KEYS, kept)
    assert isinstance(settled, Merged)
    assert settled.graph == refreshed
    assert settled.restored == ("link-v", "x")
    dropped: dict[str, Resolution] = dict.fromkeys(kept, "branch_b")
    settled = merge([base], refreshed, removed, KEYS, dropped)
    assert isinstance(settled, Merged)
    assert settled.graph == removed


def test_dropping_a_subject_drops_its_records_and_links() -> None:
    base = verified(verified(SUBJECT, "v"), "w", subject="y")
    ours, theirs = (edited(base, patched("x", f=value)) for value in (1, 2))
    outcome = merge([base], ours, theirs, KEYS, {"x": None})
    assert isinstance(outcome, Merged)
    assert outcome.dropped_records == ("v",)
    assert outcome.dropped_relations == ("link-v",)
    assert sorted(outcome.graph.ids()) == ["link-w", "w", "y"]


def test_a_record_linked_twice_by_two_sides_is_invalid_together() -> None:
    base = verified(SUBJECT, "v")
    link = {"op": "add_relation", "participants": ["x", "v"], "relation_type": "verified_by"}
    ours, theirs = (
        edited(
            base,
            {"op": "remove_relation", "relation_id": "link-v"},
            {**link, "identity": {"id": id, "type": "Relation", "name": "link"}},
        )
        for id in ("l1", "l2")
    )
    outcome = merge([base], ours, theirs, KEYS)
    assert isinstance(outcome, Conflicted)
    assert {c.object_id: c.kind for c in outcome.conflicts} == {
        "l1": "invalid_together",
        "l2": "invalid_together",
    }
    settled = merge([base], ours, theirs, KEYS, {"l1": "branch_b"})
    assert isinstance(settled, Merged)
    assert settled.graph == theirs
