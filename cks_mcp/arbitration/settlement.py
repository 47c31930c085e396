"""What decisions about one graph change, and how the version that holds them words it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cks_mcp.arbitration.fence import cut
from cks_mcp.arbitration.inference import Decision, Standing
from cks_mcp.arbitration.premises import Replaced, replaced, rewritten
from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import Limits
from cks_runtime.model.operations import apply_operations

MESSAGE_CHARACTERS_MAX = 4_000
_SHOWN_MAX = 40


@dataclass(frozen=True, slots=True)
class Settlement:
    """The graph after the decisions; `premises` as they stood when the winners were known."""

    graph: Graph
    premises: tuple[Replaced, ...]
    rewritten: Mapping[str, Sequence[str]]


def settle(
    graph: Graph, decisions: Mapping[str, Decision], stale_premise_ids: Sequence[str], limits: Limits
) -> Settlement:
    """First the winners, then the stale premises, which may have got another current step by that.

    Raises what `apply_operations` raises, and ObjectNotFound and InvalidParameter for a premise.
    """
    winners = [
        {
            "op": "resolve_inference_conflict",
            "conclusion_id": conclusion_id,
            "winner_id": decision.winner_id,
            "reasoning": decision.reasoning,
        }
        for conclusion_id, decision in decisions.items()
    ]
    decided = apply_operations(graph, winners, limits).graph if winners else graph
    stale = tuple(replaced(decided, id) for id in dict.fromkeys(stale_premise_ids))
    premises = rewritten(decided, stale)
    rewrites = [
        {"op": "update_object", "object_id": id, "mode": "merge", "structure_patch": {"premises": kept}}
        for id, kept in premises.items()
    ]
    after = apply_operations(decided, rewrites, limits).graph if rewrites else decided
    return Settlement(after, stale, premises)


def message(stands: Mapping[str, Standing], decisions: Mapping[str, Decision], made: Settlement) -> str:
    """The version's message: every decision with its source, model and reasoning, and every premise rewritten."""
    lines = []
    room = max(120, (MESSAGE_CHARACTERS_MAX - 800) // max(1, len(decisions)))
    for id, decision in decisions.items():
        by = f"llm {decision.model}" if decision.source == "llm" else decision.source
        lost = [step for step in stands[id].step_ids if step != decision.winner_id]
        over = f" over {_ids(lost)}" if lost else ""
        why = f": {cut(decision.reasoning, room)}" if decision.reasoning else ""
        lines.append(f"Arbitration of {_id(id)} by {by}: {_id(decision.winner_id)} stands{over}{why}")
    for one in made.premises:
        if one.conflict:
            lines.append(
                f"Stale premise {_id(one.premise_id)} by rule: {_ids(one.citing)} now cite"
                f"{'s' if len(one.citing) == 1 else ''} {_id(one.current_step_id)}"
            )
    left = len(lines) - _SHOWN_MAX
    if left > 0:
        lines[_SHOWN_MAX:] = [f"… and {left} more; the steps themselves keep the reasons."]
    return cut("\n".join(lines), MESSAGE_CHARACTERS_MAX - 1)


def _ids(ids: Sequence[str]) -> str:
    shown = ", ".join(_id(id) for id in ids[:10])
    return shown if len(ids) <= 10 else f"{shown} and {len(ids) - 10} more"


def _id(id: str) -> str:
    return quoted(id, 120)
