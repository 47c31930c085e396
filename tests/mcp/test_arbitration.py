"""The pure part of settling: questions, the answers that count, and what decisions change."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cks_mcp.arbitration.fence import REASONING_CHARACTERS_MAX, reasoning_of, shrink
from cks_mcp.arbitration.inference import (
    BATCH_MAX,
    Decision,
    batch_question,
    batches,
    one_question,
    standing,
)
from cks_mcp.arbitration.premises import replaced
from cks_mcp.arbitration.settlement import MESSAGE_CHARACTERS_MAX, message, settle
from cks_mcp.llm.provider import NotAnAnswer
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.knowledge import Limits
from cks_runtime.model.operations import apply_operations

LIMITS = Limits()


def thing(id: str) -> dict[str, Any]:
    return {"op": "add_object", "identity": {"id": id, "type": "Claim", "name": id}}


def step(id: str, conclusion: str, confidence: float, *premises: str, **more: Any) -> dict[str, Any]:
    return {
        "op": "record_inference",
        "identity": {"id": id, "type": "InferenceStep", "name": id},
        "premises": list(premises),
        "conclusion": conclusion,
        "operator": "deductive",
        "confidence": confidence,
        **more,
    }


def graph(*operations: dict[str, Any], on: Graph = EMPTY_GRAPH) -> Graph:
    return apply_operations(on, list(operations), LIMITS).graph


def disagreeing(count: int = 1) -> Graph:
    operations = [thing("f")]
    for n in range(count):
        operations += [thing(f"c{n}"), step(f"a{n}", f"c{n}", 0.9, "f"), step(f"b{n}", f"c{n}", 0.4, "f")]
    return graph(*operations)


ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["a0", "b0", "c0", "f", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["winner_id", "reasoning", "decisions", "c0", "c1", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(ANSWERS)
def test_whatever_is_answered_the_winner_was_offered(answer: Any) -> None:
    base = disagreeing(2)
    one = one_question(standing(base, "c0"), "n")
    batch = batch_question([standing(base, "c0"), standing(base, "c1")], "n")
    try:
        assert one.check(answer)[0] in ("a0", "b0")
    except NotAnAnswer as wrong:
        assert str(wrong)
    with pytest.raises(NotAnAnswer):
        batch.check(answer)  # it needs a1 or b1 as well, which are never said here


def test_batches_are_bounded_and_lose_nothing() -> None:
    base = disagreeing(2 * BATCH_MAX + 1)
    stands = [standing(base, f"c{n}") for n in range(2 * BATCH_MAX + 1)]
    groups = batches(stands)
    assert [len(group) for group in groups] == [BATCH_MAX, BATCH_MAX, 1]
    assert [one for group in groups for one in group] == stands


def test_a_decision_holds_as_long_as_its_steps_stay_the_same() -> None:
    base = disagreeing()
    key = standing(base, "c0").essence()
    assert standing(graph(thing("other"), on=base), "c0").essence() == key
    assert standing(graph(step("z0", "c0", 0.7, "f"), on=base), "c0").essence() != key
    renamed = {"op": "rename_object", "object_id": "b0", "new_name": "x"}
    assert standing(graph(renamed, on=base), "c0").essence() != key


def test_no_conflict_where_confidence_agrees() -> None:
    base = graph(thing("c"), thing("f"), step("a", "c", 1.0, "f"), step("b", "c", 1, "f"))
    assert not standing(base, "c").conflict and standing(base, "c").step_ids == ("a", "b")
    assert not standing(base, "f").conflict


def test_premises_are_rewritten_in_order_each_once_and_never_to_the_step_itself() -> None:
    base = graph(
        thing("f"), thing("p"), thing("c"), step("p1", "p", 0.5, "f"), step("p2", "p", 0.6, "f", "p1")
    )
    base = graph(step("e", "c", 0.7, "p2", "f", "p1"), on=base)
    base = graph(step("p3", "p", 0.8, "p1", "f", supersedes="p1"), on=base)
    base = graph(
        {"op": "resolve_inference_conflict", "conclusion_id": "p", "winner_id": "p3", "reasoning": ""},
        on=base,
    )
    assert replaced(base, "p1").citing == ("e", "p3")
    made = settle(base, {}, ["p1", "p2"], LIMITS)
    assert made.rewritten == {"e": ["p3", "f"], "p3": ["f"]}
    assert settle(made.graph, {}, ["p1", "p2"], LIMITS).graph.root == made.graph.root


def test_decisions_come_before_premises() -> None:
    base = graph(step("e", "f", 0.7, "b0"), on=disagreeing())
    made = settle(base, {"c0": Decision("a0", "why", "llm", "ollama/x")}, ["b0"], LIMITS)
    assert made.graph["e"].structure["premises"] == ["a0"]
    text = message({"c0": standing(base, "c0")}, {"c0": Decision("a0", "why", "llm", "ollama/x")}, made)
    assert text.splitlines() == [
        "Arbitration of 'c0' by llm ollama/x: 'a0' stands over 'b0': why",
        "Stale premise 'b0' by rule: 'e' now cites 'a0'",
    ]


def test_a_message_is_bounded() -> None:
    base = disagreeing(60)
    stands = {f"c{n}": standing(base, f"c{n}") for n in range(60)}
    decisions = {id: Decision(f"a{id[1:]}", "w" * 2000, "llm", "m") for id in stands}
    text = message(stands, decisions, settle(base, decisions, [], LIMITS))
    assert len(text) <= MESSAGE_CHARACTERS_MAX
    one = message(
        {"c0": stands["c0"]}, {"c0": decisions["c0"]}, settle(base, {"c0": decisions["c0"]}, [], LIMITS)
    )
    assert "w" * 2000 in one


@given(st.text())
def test_reasoning_is_one_printable_line(text: str) -> None:
    kept = reasoning_of(text * 3)
    assert all(c.isprintable() for c in kept) and len(kept) <= REASONING_CHARACTERS_MAX + 1


def test_long_texts_are_cut_in_prompts() -> None:
    shown = shrink({"a": "x" * 9000, "b": list(range(500)), "c": {"d": string.ascii_letters}})
    assert isinstance(shown, dict)
    assert len(str(shown["a"])) < 3000 and len(shown["b"]) == 50  # type: ignore[arg-type]
    assert shown["c"] == {"d": string.ascii_letters}
