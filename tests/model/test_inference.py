"""Rules of reasoning: disagreement, replaced premises, what a change can affect, and what makes a step."""

from __future__ import annotations

import pytest
from building import KEYS, codes, graph, step, thing
from hypothesis import given, settings
from hypothesis import strategies as st

from cks_runtime.model.graph import EMPTY_GRAPH, changes
from cks_runtime.model.inference import (
    affected,
    confidence_conflicts,
    current_step,
    is_active,
    is_step,
    stale_premises,
)
from cks_runtime.model.validate import check_all

# ---- disagreement


def test_the_message_of_the_contract():
    found = confidence_conflicts(
        graph(
            thing("obj-42"),
            step("step-a", "obj-42", confidence=0.9),
            step("step-b", "obj-42", confidence=0.4),
        )
    )
    assert [d.as_json() for d in found] == [
        {
            "code": "CKS-EXT-INFERENCE-CONFIDENCE-CONFLICT",
            "severity": "WARNING",
            "message": "2 active InferenceStep(s) reach conclusion 'obj-42' with disagreeing confidence "
            "values (0.9: ['step-a'], 0.4: ['step-b']).",
            "location": "step-a",
            "conclusion_id": "obj-42",
            "step_ids": ["step-a", "step-b"],
        }
    ]


def test_values_go_from_the_highest_and_ids_are_sorted():
    steps = [step("z", "c", confidence=1.0), step("b", "c", confidence=1), step("a", "c", confidence=1e-7)]
    (found,) = confidence_conflicts(graph(thing("c"), *steps, step("m", "c", confidence=0)))
    assert "4 active InferenceStep(s)" in found.message
    assert "(1: ['b', 'z'], 1e-7: ['a'], 0: ['m'])" in found.message
    assert (found.location, found.extra["step_ids"]) == ("a", ["a", "b", "m", "z"])


def test_agreeing_superseded_and_other_conclusions_do_not_clash():
    calm = graph(
        thing("c"),
        thing("d"),
        step("a", "c", confidence=1),
        step("b", "c", confidence=1.0),
        step("old", "c", confidence=0.1, superseded_by="a"),
        step("e", "d", confidence=0.2),
    )
    assert confidence_conflicts(calm) == []
    assert confidence_conflicts(EMPTY_GRAPH, ["nowhere"]) == []


def test_only_the_conclusions_asked_for_are_judged():
    both = graph(*(step(f"{c}{v}", c, confidence=v) for c in "cd" for v in (0.1, 0.2)))
    assert [d.extra["conclusion_id"] for d in confidence_conflicts(both)] == ["c", "d"]
    assert [d.extra["conclusion_id"] for d in confidence_conflicts(both, ["d", "d"])] == ["d"]


def test_a_confidence_that_is_no_number_is_passed_over():
    odd = [step(f"s{i}", "c", confidence=v) for i, v in enumerate((True, False, "0.5", None, [], 0.5))]
    assert confidence_conflicts(graph(*odd)) == []


# ---- replaced premises


def test_a_stale_premise_names_the_current_step():
    chained = graph(
        thing("c"),
        step("s1", "c", superseded_by="s2"),
        step("s2", "c", superseded_by="s3"),
        step("s3", "c"),
        step("citing", "c", "s1", "c", "s3", "s1"),
    )
    assert [d.as_json() for d in stale_premises(chained)] == [
        {
            "code": "CKS-EXT-STALE-PREMISE",
            "severity": "WARNING",
            "message": "InferenceStep 'citing' cites premise 's1', which is superseded; "
            "the current step is 's3'.",
            "location": "citing",
            "premise_id": "s1",
            "current_step_id": "s3",
        }
    ]
    assert [current_step(chained, id) for id in ("s1", "s2", "s3", "c", "nope")] == [
        "s3",
        "s3",
        "s3",
        "c",
        "nope",
    ]


def test_one_warning_for_each_cited_premise_of_active_steps_only():
    many = graph(
        *(step(f"old{i}", "c", superseded_by="new") for i in range(3)),
        step("new", "c"),
        step("a", "c", "old0", "old2"),
        step("b", "c", "old1"),
        step("gone", "c", "old0", superseded_by="new"),
    )
    assert [(d.location, d.extra["premise_id"]) for d in stale_premises(many)] == [
        ("a", "old0"),
        ("a", "old2"),
        ("b", "old1"),
    ]
    assert [d.location for d in stale_premises(many, ["b", "gone", "c", "nope"])] == ["b"]


def test_a_chain_that_bites_its_tail_ends():
    ring = graph(step("a", "c", superseded_by="b"), step("b", "c", superseded_by="a"), step("s", "c", "a"))
    assert current_step(ring, "a") == "b"
    assert [d.location for d in stale_premises(ring)] == ["s"]


def test_only_null_and_absence_are_active():
    assert is_active(step("s", "c")) and is_active(step("s", "c", superseded_by=None))
    assert not any(is_active(step("s", "c", superseded_by=v)) for v in ("x", "", False, 0, []))
    assert not is_active(thing("t")) and not is_active(None) and not is_step(None)


# ---- what a change can affect

IDS = ["s1", "s2", "s3", "s4", "c", "d"]
odd_values = st.none() | st.sampled_from(IDS[:4]) | st.sampled_from([*IDS, "", 3, True])
steps = st.builds(
    lambda id, conclusion, premises, confidence, next_id: step(
        id, conclusion, *premises, confidence=confidence, superseded_by=next_id
    ),
    st.sampled_from(IDS[:4]),
    st.sampled_from(IDS[-2:]),
    st.lists(st.sampled_from(IDS), max_size=3),
    st.sampled_from([0.1, 0.2, 1, True]),
    odd_values,
)
objects = steps | st.builds(thing, st.sampled_from(IDS))
graphs = st.lists(objects, max_size=8).map(lambda found: graph(*{obj.id: obj for obj in found}.values()))


edits = st.lists(objects | st.sampled_from(IDS[:4]), min_size=1, max_size=2)


@settings(max_examples=300)
@given(graphs, edits)
def test_outside_of_what_is_affected_nothing_changes(before, edited):
    after = before.with_changes({getattr(e, "id", e): None if isinstance(e, str) else e for e in edited})
    conclusions, citing = affected(changes(before, after), after)
    for id in IDS:
        if id not in conclusions:
            assert confidence_conflicts(before, [id]) == confidence_conflicts(after, [id])
        if id not in citing:
            assert stale_premises(before, [id]) == stale_premises(after, [id])


def test_a_link_affects_who_cites_the_steps_that_lead_to_it():
    before = graph(
        thing("c"),
        step("s1", "c", superseded_by="s2"),
        step("s2", "c", superseded_by="s3"),
        step("s3", "c"),
        step("s4", "c"),
        step("citing", "c", "s1"),
        step("other", "c", "s4"),
    )
    for link in ("s4", None):
        after = before.with_changes({"s2": step("s2", "c", superseded_by=link)})
        assert affected(changes(before, after), after) == ({"c"}, {"s2", "citing"})
    after = before.with_changes({"s3": None})
    assert affected(changes(before, after), after) == ({"c"}, {"s3", "citing"})


@given(graphs)
def test_a_rule_over_all_is_the_rule_over_each(some):
    assert confidence_conflicts(some) == confidence_conflicts(some, IDS)
    assert stale_premises(some) == stale_premises(some, IDS)


def test_affected_does_not_walk_the_citers_of_an_edit_that_supersedes_nothing():
    before = graph(thing("c"), step("s", "c"), *(step(f"x{i}", "c", "s") for i in range(50)))
    after = before.with_changes({"s": step("s", "c", confidence=0.7)})
    assert affected(changes(before, after), after) == ({"c"}, {"s"})


# ---- the form of a step


def judged(**broken: object):
    parts = {"premises": ["p"], "conclusion": "c", "operator": "deductive", "confidence": 1}
    parts = {k: v for k, v in {**parts, **broken}.items() if v != "absent"}
    return check_all(graph(thing("p"), thing("c"), thing("s", "InferenceStep", **parts)), KEYS)


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("premises", "absent", "CKS-EXT-INFERENCE-INTEGRITY"),
        ("premises", "p", "CKS-EXT-INFERENCE-INTEGRITY"),
        ("premises", ["p", 3], "CKS-EXT-INFERENCE-INTEGRITY"),
        ("premises", [""], "CKS-EXT-INFERENCE-INTEGRITY"),
        ("premises", ["p", "nope"], "CKS-EXT-INFERENCE-INTEGRITY"),
        ("conclusion", "absent", "CKS-EXT-INFERENCE-INTEGRITY"),
        ("conclusion", None, "CKS-EXT-INFERENCE-INTEGRITY"),
        ("conclusion", ["c"], "CKS-EXT-INFERENCE-INTEGRITY"),
        ("conclusion", "nope", "CKS-EXT-INFERENCE-INTEGRITY"),
        ("operator", "absent", "CKS-EXT-INFERENCE-INTEGRITY"),
        ("operator", "guessing", "CKS-EXT-INFERENCE-INTEGRITY"),
        ("operator", ["deductive"], "CKS-EXT-INFERENCE-INTEGRITY"),
        ("justification", 3, "CKS-EXT-INFERENCE-INTEGRITY"),
        ("alternatives_considered", "x", "CKS-EXT-INFERENCE-INTEGRITY"),
        ("alternatives_considered", [1], "CKS-EXT-INFERENCE-INTEGRITY"),
        ("confidence", "absent", "CKS-EXT-CONFIDENCE-BOUNDS"),
        ("confidence", True, "CKS-EXT-CONFIDENCE-BOUNDS"),
        ("confidence", "1", "CKS-EXT-CONFIDENCE-BOUNDS"),
        ("confidence", 1.0000001, "CKS-EXT-CONFIDENCE-BOUNDS"),
        ("confidence", -1, "CKS-EXT-CONFIDENCE-BOUNDS"),
        ("superseded_by", "", "CKS-EXT-SUPERSESSION-CHAIN"),
        ("superseded_by", False, "CKS-EXT-SUPERSESSION-CHAIN"),
        ("superseded_by", "nope", "CKS-EXT-SUPERSESSION-CHAIN"),
        ("superseded_by", "c", "CKS-EXT-SUPERSESSION-CHAIN"),
        ("superseded_by", "s", "CKS-EXT-SUPERSESSION-CHAIN"),
    ],
)
def test_a_broken_step_is_an_error_that_names_it_and_the_field(key, value, code):
    (found,) = judged(**{key: value})
    assert (found.code, found.severity, found.location) == (code, "ERROR", "s")
    assert "'s'" in found.message
    assert key in found.message or key.rstrip("s") in found.message


def test_whole_steps_are_fine():
    assert judged() == []
    assert judged(premises=[], superseded_by=None, justification="", alternatives_considered=["x"]) == []
    for operator in ("deductive", "inductive", "abductive", "heuristic"):
        assert judged(operator=operator, confidence=0) == []


def test_a_cycle_is_one_error_that_names_all_of_it():
    ring = [
        step("b", "c", superseded_by="a"),
        step("a", "c", superseded_by="x"),
        step("x", "c", superseded_by="b"),
    ]
    found = check_all(graph(thing("c"), *ring, step("tail", "c", superseded_by="x")), KEYS)
    assert codes(found) == ["CKS-EXT-SUPERSESSION-CHAIN"]
    assert found[0].location == "a"
    assert found[0].extra["object_ids"] == ["a", "x", "b"]
    assert "'a', 'x', 'b', 'a'" in found[0].message
