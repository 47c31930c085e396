"""Reasoning steps: what makes one well-formed, and where beliefs disagree or rest on replaced premises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cks_runtime.model.canon import Json, number_text
from cks_runtime.model.diagnostics import (
    CONFIDENCE_BOUNDS,
    CONFIDENCE_CONFLICT,
    INFERENCE_INTEGRITY,
    STALE_PREMISE,
    Diagnostic,
    broken,
    in_order,
    quoted,
    quoted_ids,
    warning,
)
from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import KObject
from cks_runtime.model.supersession import STEP_TYPE, chain_end, is_superseded

OPERATORS: Final = ("deductive", "inductive", "abductive", "heuristic")


def is_step(obj: KObject | None) -> bool:
    """Whether this is an InferenceStep."""
    return obj is not None and obj.type == STEP_TYPE


def is_active(obj: KObject | None) -> bool:
    """Whether this is an InferenceStep that no other step supersedes."""
    return obj is not None and obj.type == STEP_TYPE and not is_superseded(obj)


def current_step(graph: Graph, id: str) -> str:
    """The step at the end of the supersession chain from `id`; `id` itself when nothing supersedes it."""
    obj = graph.get(id)
    return id if obj is None else chain_end(graph, obj).id


def active_steps(graph: Graph, conclusion: str) -> list[KObject]:
    """The active steps that reach this conclusion, sorted by id."""
    found = (graph[id] for id in sorted(graph.referrers("conclusion", conclusion)))
    return [step for step in found if is_active(step)]


def confidence_of(step: KObject) -> int | float | None:
    """The step's confidence; None where it is not a number."""
    value = step.structure.get("confidence")
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def confidence_conflicts(graph: Graph, conclusions: Iterable[str] | None = None) -> list[Diagnostic]:
    """A WARNING for each of these conclusions (default: all) whose active steps have different confidence."""
    if conclusions is None:
        steps = (graph[id] for id in graph.of_type(STEP_TYPE))
        conclusions = {c for step in steps if isinstance(c := step.structure.get("conclusion"), str)}
    found = (_disagreement(conclusion, active_steps(graph, conclusion)) for conclusion in set(conclusions))
    return in_order(d for d in found if d is not None)


def _disagreement(conclusion: str, steps: list[KObject]) -> Diagnostic | None:
    by_value: dict[int | float, list[str]] = {}
    for step in steps:
        value = confidence_of(step)
        if value is not None:
            by_value.setdefault(value, []).append(step.id)
    if len(by_value) < 2:
        return None
    ids = sorted(id for group in by_value.values() for id in group)
    values = ", ".join(f"{number_text(value)}: {by_value[value]}" for value in sorted(by_value, reverse=True))
    message = (
        f"{len(ids)} active InferenceStep(s) reach conclusion '{conclusion}' "
        f"with disagreeing confidence values ({values})."
    )
    step_ids: list[Json] = [*ids]
    return warning(CONFIDENCE_CONFLICT, ids[0], message, conclusion_id=conclusion, step_ids=step_ids)


def stale_premises(graph: Graph, steps: Iterable[str] | None = None) -> list[Diagnostic]:
    """A WARNING for each superseded step that one of these steps (default: all) cites, being active."""
    ids = graph.of_type(STEP_TYPE) if steps is None else set(steps)
    citing = (step for id in ids if (step := graph.get(id)) is not None and is_active(step))
    return in_order(d for step in citing for d in _stale_in(step, graph))


def _stale_in(step: KObject, graph: Graph) -> Iterator[Diagnostic]:
    for premise_id in premise_ids(step):
        premise = graph.get(premise_id)
        if premise is None or premise.type != STEP_TYPE or not is_superseded(premise):
            continue
        current = chain_end(graph, premise).id
        message = (
            f"InferenceStep '{step.id}' cites premise '{premise_id}', which is superseded; "
            f"the current step is '{current}'."
        )
        yield warning(STALE_PREMISE, step.id, message, premise_id=premise_id, current_step_id=current)


def premise_ids(step: KObject) -> list[str]:
    """The ids a step cites, each once, in the order written; what is not a string is passed over."""
    premises = step.structure.get("premises")
    if not isinstance(premises, list):
        return []
    return list(dict.fromkeys(p for p in premises if isinstance(p, str)))


def affected(
    changes: Iterable[tuple[str, KObject | None, KObject | None]], after: Graph
) -> tuple[set[str], set[str]]:
    """(conclusions, steps) where the two rules may answer differently after changes (id, before, after).

    Everything outside the two sets has the diagnostics it had before. Removed steps are among the steps. The
    cost follows the changed steps and, where a `superseded_by` changed, the steps that lead there and those
    that cite them.
    """
    conclusions: set[str] = set()
    steps: set[str] = set()
    relinked: list[str] = []
    for id, before, now in changes:
        versions = [obj for obj in (before, now) if obj is not None and obj.type == STEP_TYPE]
        if not versions:
            continue
        steps.add(id)
        conclusions.update(c for obj in versions if isinstance(c := obj.structure.get("conclusion"), str))
        links = [obj.structure.get("superseded_by") for obj in versions]
        if len(links) < 2 or links[0] != links[1]:
            relinked.append(id)
    for id in _led_by(after, relinked):
        steps.update(citing for citing in after.referrers("premise", id) if is_step(after.get(citing)))
    return conclusions, steps


def _led_by(graph: Graph, ids: list[str]) -> set[str]:
    """These ids and all steps whose supersession chain passes through one of them."""
    found = set(ids)
    waiting = list(ids)
    while waiting:
        for id in graph.referrers("superseded_by", waiting.pop()):
            if id not in found and is_step(graph.get(id)):
                found.add(id)
                waiting.append(id)
    return found


def check_step(step: KObject, graph: Graph) -> Iterator[Diagnostic]:
    """ERRORs of one InferenceStep: its form, and what it cites and does not exist (not its successor)."""
    yield from _check_premises(step, graph)
    yield from _check_conclusion(step, graph)
    operator = step.structure.get("operator")
    if not isinstance(operator, str) or operator not in OPERATORS:
        yield _unfit(step, f"'operator' must be one of {', '.join(OPERATORS)}, is {quoted(operator)}")
    confidence = step.structure.get("confidence")
    value = confidence_of(step)
    if value is None or not 0 <= value <= 1:
        problem = f"'confidence' must be a number from 0 to 1, is {quoted(confidence)}"
        yield broken(CONFIDENCE_BOUNDS, step.id, f"InferenceStep {quoted(step.id)}: {problem}")
    justification = step.structure.get("justification")
    if justification is not None and not isinstance(justification, str):
        yield _unfit(step, f"'justification' must be a text, is {quoted(justification)}")
    others = step.structure.get("alternatives_considered")
    if others is not None and not (isinstance(others, list) and all(isinstance(o, str) for o in others)):
        yield _unfit(step, f"'alternatives_considered' must be a list of texts, is {quoted(others)}")


def _check_premises(step: KObject, graph: Graph) -> Iterator[Diagnostic]:
    premises = step.structure.get("premises")
    if not isinstance(premises, list):
        yield _unfit(step, f"'premises' must be a list of object ids, is {quoted(premises)}")
        return
    strange = [p for p in premises if not isinstance(p, str) or not p]
    if strange:
        yield _unfit(step, f"'premises' must hold object ids only, holds {quoted(strange[0])}")
    missing = [p for p in premise_ids(step) if p and p not in graph]
    if missing:
        yield _unfit(step, f"cites premises that do not exist: {quoted_ids(missing)}; {_REMEDY}", *missing)


def _check_conclusion(step: KObject, graph: Graph) -> Iterator[Diagnostic]:
    conclusion = step.structure.get("conclusion")
    if not isinstance(conclusion, str) or not conclusion:
        yield _unfit(step, f"'conclusion' must be an object id, is {quoted(conclusion)}")
    elif conclusion not in graph:
        yield _unfit(
            step, f"has a conclusion that does not exist: {quoted(conclusion)}; {_REMEDY}", conclusion
        )


_REMEDY: Final = "remove or rewrite this step first, or keep what it refers to"


def _unfit(step: KObject, problem: str, *others: str) -> Diagnostic:
    return broken(INFERENCE_INTEGRITY, step.id, f"InferenceStep {quoted(step.id)}: {problem}", *others)
