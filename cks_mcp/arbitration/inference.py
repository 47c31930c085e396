"""Which of several disagreeing steps holds: what stands against what, the question, and the answers that count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cks_mcp.arbitration.fence import PROMPT_BYTES_MAX, RULES, fenced, reasoning_of, shrink
from cks_mcp.llm.provider import NotAnAnswer, Question
from cks_runtime.model.canon import Hash, Json, content_id
from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.errors import InvalidParameter, ObjectNotFound
from cks_runtime.model.graph import Graph
from cks_runtime.model.inference import active_steps, confidence_of, premise_ids
from cks_runtime.model.knowledge import KObject

Source = Literal["caller", "llm", "rule"]

BATCH_MAX = 20
"""Conclusions in one question: a model that has to weigh more of them at once weighs none."""
_SYSTEM = (
    "You settle disagreements in a knowledge graph. Several reasoning steps reach one conclusion with different "
    "confidence; pick the step whose premises and justification support its confidence best. " + RULES
)


@dataclass(frozen=True, slots=True)
class Standing:
    """The active steps of one conclusion; `conflict` when their confidence differs."""

    conclusion_id: str
    conclusion: KObject
    steps: tuple[KObject, ...]

    @property
    def conflict(self) -> bool:
        return len({value for step in self.steps if (value := confidence_of(step)) is not None}) > 1

    @property
    def step_ids(self) -> tuple[str, ...]:
        return tuple(step.id for step in self.steps)

    def essence(self) -> Hash:
        """What a decision is based on: it holds as long as this stays the same."""
        steps: list[Json] = [step.hash.hex() for step in self.steps]
        return content_id([self.conclusion_id, self.conclusion.hash.hex(), steps])


@dataclass(frozen=True, slots=True)
class Decision:
    """A step was picked; `model` is `provider/name` where a language model did it."""

    winner_id: str
    reasoning: str
    source: Source
    model: str = ""


Verdict = tuple[str, str]
"""(winner's id, reasoning)"""


def standing(graph: Graph, conclusion_id: str) -> Standing:
    """How things stand with a conclusion. Raises ObjectNotFound for one the graph does not have."""
    conclusion = graph.get(conclusion_id)
    if conclusion is None:
        raise ObjectNotFound(
            f"There is no object {quoted(conclusion_id)} in this session.",
            "conclusion_id is the object that the steps conclude, as the diagnostic names it.",
            object_id=conclusion_id,
        )
    return Standing(conclusion_id, conclusion, tuple(active_steps(graph, conclusion_id)))


def require_active(stands: Standing, winner_id: str, argument: str) -> None:
    """Raises InvalidParameter when this is none of the conclusion's active steps."""
    if winner_id in stands.step_ids:
        return
    offered = ", ".join(quoted(id) for id in stands.step_ids[:10]) or "none"
    raise InvalidParameter(
        f"{argument} is {quoted(winner_id)}, which is no active step for {quoted(stands.conclusion_id)}.",
        f"Its active steps: {offered}.",
        argument=argument,
    )


def step_json(step: KObject) -> dict[str, Json]:
    """A step as tools show it and as a model sees it, long texts cut."""
    shown: dict[str, Json] = {"step_id": step.id, "name": step.name}
    shown["premises"] = [*premise_ids(step)]
    for key in ("operator", "confidence", "justification", "alternatives_considered"):
        shown[key] = shrink(step.structure.get(key))
    return shown


def one_question(stands: Standing, nonce: str) -> Question[Verdict]:
    """The question about one conclusion; the answer is `{winner_id, reasoning}`."""

    def check(answer: Json) -> Verdict:
        return _verdict(answer, stands.step_ids, "the answer")

    ask = "Which step should stand? Give its step_id as winner_id and one or two sentences of reasoning."
    return Question(
        _SYSTEM, f"{ask}\n\n{fenced(_shown(stands), nonce)}", _winner_schema(stands.step_ids), check
    )


def batch_question(all_stands: Sequence[Standing], nonce: str) -> Question[dict[str, Verdict]]:
    """The question about several; the answer is `{decisions: {conclusion_id: {winner_id, reasoning}}}`."""
    offered = {stands.conclusion_id: stands.step_ids for stands in all_stands}

    def check(answer: Json) -> dict[str, Verdict]:
        decisions = exactly(answer, ("decisions",), "the answer")["decisions"]
        decided = exactly(decisions, tuple(offered), "decisions")
        return {id: _verdict(decided[id], steps, quoted(id)) for id, steps in offered.items()}

    schema = object_schema({id: _winner_schema(steps) for id, steps in offered.items()})
    ask = (
        "For each conclusion: which step should stand? Give its step_id as winner_id, and one or two sentences of "
        "reasoning."
    )
    data: list[Json] = [_shown(stands) for stands in all_stands]
    return Question(_SYSTEM, f"{ask}\n\n{fenced(data, nonce)}", object_schema({"decisions": schema}), check)


def batches(all_stands: Sequence[Standing]) -> list[list[Standing]]:
    """The standings in groups that each fit one question."""
    groups: list[list[Standing]] = []
    size = 0
    for stands in all_stands:
        weight = len(fenced(_shown(stands), "").encode())
        if not groups or len(groups[-1]) == BATCH_MAX or size + weight > PROMPT_BYTES_MAX:
            groups.append([])
            size = 0
        groups[-1].append(stands)
        size += weight
    return groups


def _shown(stands: Standing) -> dict[str, Json]:
    conclusion = stands.conclusion
    named: dict[str, Json] = {"id": conclusion.id, "type": conclusion.type, "name": conclusion.name}
    steps: list[Json] = [step_json(step) for step in stands.steps]
    return {"conclusion": named, "steps": steps}


def _winner_schema(steps: Sequence[str]) -> dict[str, Any]:
    return object_schema(
        {"winner_id": {"type": "string", "enum": list(steps)}, "reasoning": {"type": "string"}}
    )


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with exactly these keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _verdict(answer: Json, offered: Sequence[str], where: str) -> Verdict:
    found = exactly(answer, ("winner_id", "reasoning"), where)
    winner, reasoning = found["winner_id"], found["reasoning"]
    if not isinstance(winner, str) or winner not in offered:
        raise NotAnAnswer(f"{where} names {quoted(winner)} as winner_id, which is none of the offered steps")
    if not isinstance(reasoning, str):
        raise NotAnAnswer(f"{where} has no text as reasoning")
    return winner, reasoning_of(reasoning)


def exactly(value: Json, keys: Sequence[str], where: str) -> dict[str, Json]:
    """An object with these keys and no other. Raises NotAnAnswer."""
    if not isinstance(value, dict):
        raise NotAnAnswer(f"{where} is not an object")
    for key in keys:
        if key not in value:
            raise NotAnAnswer(f"{where} lacks {quoted(key)}")
    for key in value:
        if key not in keys:
            raise NotAnAnswer(f"{where} has {quoted(key)}, which was not asked for")
    return value
