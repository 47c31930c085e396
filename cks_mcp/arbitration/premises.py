"""Stale premises: which steps cite a replaced one, and what they cite once that is put right. A rule, no judgement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.errors import InvalidParameter, ObjectNotFound
from cks_runtime.model.graph import Graph
from cks_runtime.model.inference import current_step, is_active, is_step, premise_ids


@dataclass(frozen=True, slots=True)
class Replaced:
    """A premise: the step that stands in its place now, and the active steps that still cite it."""

    premise_id: str
    current_step_id: str
    citing: tuple[str, ...]

    @property
    def conflict(self) -> bool:
        return bool(self.citing)


def replaced(graph: Graph, premise_id: str) -> Replaced:
    """How things stand with a premise. Raises ObjectNotFound, InvalidParameter for what is no reasoning step."""
    premise = graph.get(premise_id)
    if premise is None:
        raise ObjectNotFound(
            f"There is no object {quoted(premise_id)} in this session.",
            "stale_premise_ids holds values of premise_id, as the diagnostics name them.",
            object_id=premise_id,
        )
    if not is_step(premise):
        raise InvalidParameter(
            f"{quoted(premise_id)} is a {quoted(premise.type)}, not an InferenceStep: it cannot be superseded.",
            "stale_premise_ids holds values of premise_id, as the diagnostics name them.",
            argument="stale_premise_ids",
        )
    current = current_step(graph, premise_id)
    if current == premise_id:
        return Replaced(premise_id, current, ())
    citing = (id for id in sorted(graph.referrers("premise", premise_id)) if is_active(graph.get(id)))
    return Replaced(premise_id, current, tuple(citing))


def rewritten(graph: Graph, stale: Sequence[Replaced]) -> dict[str, list[str]]:
    """The premises of every citing step, each replaced one by its current step: in order, each once, never itself."""
    now = {one.premise_id: one.current_step_id for one in stale}
    steps = sorted({id for one in stale for id in one.citing})
    return {id: _current(premise_ids(graph[id]), now, id) for id in steps}


def _current(premises: Iterable[str], now: dict[str, str], own_id: str) -> list[str]:
    # a step that replaced its own premise does not support itself
    found = dict.fromkeys(now.get(premise, premise) for premise in premises)
    return [id for id in found if id != own_id]
