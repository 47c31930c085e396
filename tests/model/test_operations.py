"""Operations: what each one does, what goes with what it removes, and the net effect of a list."""

from __future__ import annotations

import pytest
from building import accepted, codes, evolve, graph, identity, op, proof, relation, step, thing

from cks_runtime.model.canon import content_id
from cks_runtime.model.errors import InvalidParameter, ObjectNotFound
from cks_runtime.model.graph import EMPTY_GRAPH
from cks_runtime.model.operations import apply_operations, replace_with

# ---- each operation


def test_add_object_with_and_without_structure():
    after = accepted(
        EMPTY_GRAPH,
        op("add_object", identity=identity("a"), structure={"radius_km": 1188.3}),
        op("add_object", identity=identity("b")),
    )
    assert after["a"].structure == {"radius_km": 1188.3}
    assert after["b"].structure == {}
    assert after["a"].hash == content_id(after["a"].as_json())


def test_merge_is_shallow_and_null_deletes():
    before = graph(thing("a", keep=1, drop=2, nested={"x": 1, "y": 2}))
    patch = {"drop": None, "nested": {"x": 3}, "new": [None], "absent": None}
    after = accepted(before, op("update_object", object_id="a", structure_patch=patch))
    assert after["a"].structure == {"keep": 1, "nested": {"x": 3}, "new": [None]}
    assert before["a"].structure == {"keep": 1, "drop": 2, "nested": {"x": 1, "y": 2}}


def test_merge_keeps_a_null_that_the_patch_does_not_name():
    before = graph(thing("a", kept=None, f=1))
    after = accepted(before, op("update_object", object_id="a", structure_patch={"f": 2}))
    assert after["a"].structure == {"kept": None, "f": 2}


def test_replace_is_exactly_the_patch():
    before = graph(thing("a", gone=1))
    after = accepted(before, op("update_object", object_id="a", structure_patch={"b": None}, mode="replace"))
    assert after["a"].structure == {"b": None}


def test_rename_keeps_all_else():
    after = accepted(graph(thing("a", f=1)), op("rename_object", object_id="a", new_name="New"))
    assert (after["a"].name, after["a"].type, after["a"].structure) == ("New", "Thing", {"f": 1})


def test_relations_are_added_and_removed():
    before = graph(thing("a"), thing("b"))
    add = op(
        "add_relation", identity=identity("r", "Relation"), participants=["a", "b"], relation_type="knows"
    )
    after = accepted(before, {**add, "structure": {"since": 1990}})
    assert after["r"].structure == {"since": 1990, "participants": ["a", "b"], "relation_type": "knows"}
    assert accepted(after, op("remove_relation", relation_id="r")) == before


def test_a_relation_structure_may_repeat_but_not_contradict_the_arguments():
    before = graph(thing("a"), thing("b"))
    add = op(
        "add_relation", identity=identity("r", "Relation"), participants=["a", "b"], relation_type="knows"
    )
    assert accepted(before, {**add, "structure": {"relation_type": "knows"}})["r"].is_relation
    with pytest.raises(InvalidParameter, match=r"operations\[0\]\.structure.*'participants'"):
        apply_operations(before, [{**add, "structure": {"participants": ["b", "a"]}}])


def test_operations_may_refer_to_what_later_ones_add():
    accepted(
        EMPTY_GRAPH,
        op(
            "add_relation", identity=identity("r", "Relation"), participants=["a", "b"], relation_type="knows"
        ),
        op("add_object", identity=identity("a")),
        op("add_object", identity=identity("b")),
    )


def test_removing_cascades_through_relations_and_records():
    subject = thing("a")
    before = graph(
        subject, thing("b"), relation("r", "a", "b"), relation("about-r", "r", "b"), relation("bb", "b", "b")
    )
    before = accepted(before, *proof(subject), *proof(before["r"], "rec-r", "link-r"))
    applied, found = evolve(before, op("remove_object", object_id="a"))
    assert found == []
    assert applied.cascade_relations == ("about-r", "link", "link-r", "r")
    assert applied.cascade_records == ("rec", "rec-r")
    assert sorted(applied.graph.ids()) == ["b", "bb"]
    assert applied.touched == dict.fromkeys(["a", "r", "about-r", "link", "link-r", "rec", "rec-r"])


def test_removing_a_relation_cascades_too():
    before = graph(thing("a"), thing("b"), relation("r", "a", "b"), relation("about-r", "r", "b"))
    applied, found = evolve(before, op("remove_relation", relation_id="r"))
    assert (found, applied.cascade_relations) == ([], ("about-r",))


def test_a_cascade_reaches_what_the_same_list_added_but_not_what_it_puts_back():
    before = graph(thing("a"), thing("b"), relation("r", "a", "b"))
    again = op(
        "add_relation",
        identity=identity("r", "Relation", "R"),
        participants=["a", "b"],
        relation_type="knows",
    )
    new = {**again, "identity": identity("new", "Relation")}
    back = op("add_object", identity=identity("a", name="A"))
    applied, found = evolve(before, new, op("remove_object", object_id="a"), back, again)
    assert found == []
    assert applied.cascade_relations == ("new",)
    assert (applied.touched, applied.graph) == ({}, before)


def test_a_cascade_goes_by_the_ends_that_a_relation_has_now():
    before = graph(thing("a"), thing("b"), thing("c"))
    add = op(
        "add_relation", identity=identity("r", "Relation"), participants=["a", "b"], relation_type="knows"
    )
    updated = [add, op("update_object", object_id="r", structure_patch={"participants": ["b", "c"]})]
    made_anew = [add, op("remove_relation", relation_id="r"), {**add, "participants": ["b", "c"]}]
    for moved in (updated, made_anew):
        applied, _ = evolve(before, *moved, op("remove_object", object_id="a"))
        assert applied.cascade_relations == ()
        assert sorted(applied.graph.ids()) == ["b", "c", "r"]


def test_removing_a_cited_object_is_blocked_by_the_step():
    before = graph(thing("a"), thing("c"), step("s", "c", "a"))
    for gone in ("a", "c"):
        _, found = evolve(before, op("remove_object", object_id=gone))
        assert codes(found) == ["CKS-EXT-INFERENCE-INTEGRITY"]
        assert (found[0].location, found[0].severity) == ("s", "ERROR")
        assert repr(gone) in found[0].message and "remove or rewrite this step first" in found[0].message
        assert found[0].extra["object_ids"] == ["s", gone]
    accepted(before, op("remove_object", object_id="s"), op("remove_object", object_id="a"))


def test_record_inference():
    before = graph(thing("p"), thing("c"))
    applied, found = evolve(
        before,
        op(
            "record_inference",
            identity=identity("s", "InferenceStep"),
            premises=["p"],
            conclusion="c",
            operator="abductive",
            confidence=1.0,
        ),
    )
    assert found == []
    assert applied.graph["s"].structure == {
        "premises": ["p"],
        "conclusion": "c",
        "operator": "abductive",
        "confidence": 1,
        "justification": "",
        "alternatives_considered": [],
        "superseded_by": None,
    }


def infer(id: str, **more: object) -> dict:
    base = {"premises": [], "conclusion": "c", "operator": "deductive", "confidence": 0.5}
    return op("record_inference", identity=identity(id, "InferenceStep"), **{**base, **more})


def test_record_inference_supersedes_an_active_step_once():
    before = accepted(graph(thing("c")), infer("s1"), infer("s2", supersedes="s1"))
    assert before["s1"].structure["superseded_by"] == "s2"
    with pytest.raises(InvalidParameter, match="superseded already") as refused:
        apply_operations(before, [infer("s3", supersedes="s1")])
    assert refused.value.hint == "The current step is 's2'."
    with pytest.raises(InvalidParameter, match="not an InferenceStep"):
        apply_operations(before, [infer("s3", supersedes="c")])
    with pytest.raises(ObjectNotFound, match=r"operations\[0\]\.supersedes: no object 'nope'"):
        apply_operations(before, [infer("s3", supersedes="nope")])
    with pytest.raises(ObjectNotFound):
        apply_operations(before, [infer("s3", supersedes="s3")])


def test_superseding_a_step_for_another_conclusion_is_blocked():
    before = graph(thing("c"), thing("d"), step("s", "d"))
    _, found = evolve(before, infer("new", supersedes="s"))
    assert codes(found) == ["CKS-EXT-SUPERSESSION-CHAIN"]
    assert "whose 'conclusion' is 'c' and not 'd'" in found[0].message


@pytest.mark.parametrize("confidence", [-0.1, 1.1, True, "0.5", None, [0.5]])
def test_confidence_out_of_bounds_is_an_error(confidence):
    _, found = evolve(graph(thing("c")), infer("s", confidence=confidence))
    assert codes(found) == ["CKS-EXT-CONFIDENCE-BOUNDS"]
    assert "'confidence'" in found[0].message


def test_resolve_supersedes_every_other_active_step():
    before = graph(
        thing("c"),
        thing("d"),
        step("old", "c", superseded_by="a"),
        step("a", "c", confidence=0.9),
        step("b", "c", confidence=0.4),
        step("w", "c"),
        step("other", "d"),
    )
    settle = op("resolve_inference_conflict", conclusion_id="c", winner_id="w", reasoning="Newer data.")
    applied, found = evolve(before, settle)
    assert found == []
    assert sorted(applied.touched) == ["a", "b"]
    for id in ("a", "b"):
        assert applied.graph[id].structure["superseded_by"] == "w"
        assert applied.graph[id].structure["superseded_reason"] == "Newer data."
    assert apply_operations(applied.graph, [settle]).touched == {}


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"conclusion_id": "nope", "winner_id": "w"}, ObjectNotFound, "conclusion_id"),
        ({"conclusion_id": "c", "winner_id": "nope"}, ObjectNotFound, "winner_id"),
        ({"conclusion_id": "c", "winner_id": "c"}, InvalidParameter, "winner_id"),
        ({"conclusion_id": "c", "winner_id": "old"}, InvalidParameter, "winner_id"),
        ({"conclusion_id": "d", "winner_id": "w"}, InvalidParameter, "winner_id"),
        ({"conclusion_id": "c", "winner_id": "w", "reasoning": 1}, InvalidParameter, "reasoning"),
    ],
)
def test_the_winner_is_an_active_step_of_that_conclusion(arguments, error, named):
    before = graph(thing("c"), thing("d"), step("w", "c"), step("old", "c", superseded_by="w"))
    with pytest.raises(error) as refused:
        apply_operations(before, [op("resolve_inference_conflict", **arguments)])
    assert refused.value.details["argument"] == f"operations[0].{named}"


# ---- net effect


def test_what_changes_nothing_is_not_touched():
    before = graph(thing("a", f=1))
    applied = apply_operations(
        before,
        [
            op("update_object", object_id="a", structure_patch={"f": 2}),
            op("add_object", identity=identity("x")),
            op("update_object", object_id="a", structure_patch={"f": 1.0}),
            op("remove_object", object_id="x"),
        ],
    )
    assert (applied.touched, applied.graph) == ({}, before)


def test_replace_with_adds_and_replaces():
    before = graph(thing("a", f=1), thing("b"))
    applied = replace_with(before, [thing("a", f=2), thing("b"), thing("c")])
    assert sorted(applied.touched) == ["a", "c"]
    assert applied.graph["a"].structure == {"f": 2}
    assert sorted(applied.graph.ids()) == ["a", "b", "c"]
