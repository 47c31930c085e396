"""Which side of a merge conflict holds: the question, and the answers that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cks_mcp.arbitration.fence import PROMPT_BYTES_MAX, RULES, fenced, reasoning_of, shrink
from cks_mcp.arbitration.inference import exactly, object_schema
from cks_mcp.llm.provider import NotAnAnswer, Question
from cks_runtime.model.canon import Hash, Json, content_id
from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.errors import TooLarge
from cks_runtime.model.merge import MergeConflict

Side = Literal["branch_a", "branch_b"]
SIDES: tuple[Side, ...] = ("branch_a", "branch_b")
Choice = tuple[dict[str, Side], str]
"""(side by object id, reasoning)"""

_SYSTEM = (
    "You settle merge conflicts in a knowledge graph. Two lines of work changed the same objects since their common "
    "base. For each object pick the side whose change should stand: branch_a is the target, branch_b the source. "
    + RULES
)


def merge_question(conflicts: Sequence[MergeConflict], nonce: str) -> Question[Choice]:
    """The question about every conflicting object; the answer is `{resolutions: {object_id: side}, reasoning}`.

    Raises TooLarge when it would not fit a prompt.
    """
    ids = tuple(conflict.object_id for conflict in conflicts)

    def check(answer: Json) -> Choice:
        found = exactly(answer, ("resolutions", "reasoning"), "the answer")
        chosen = exactly(found["resolutions"], ids, "resolutions")
        if not isinstance(found["reasoning"], str):
            raise NotAnAnswer("the answer has no text as reasoning")
        return {id: _side(chosen[id], id) for id in ids}, reasoning_of(found["reasoning"])

    sides = object_schema({id: {"type": "string", "enum": list(SIDES)} for id in ids})
    data: list[Json] = [_shown(conflict) for conflict in conflicts]
    text = fenced(data, nonce)
    size = len(text.encode())
    if size > PROMPT_BYTES_MAX:
        raise TooLarge(
            f"The {len(ids)} conflicts make a question of {size} bytes; at most {PROMPT_BYTES_MAX} are asked at once.",
            "Settle some of them by resolutions of merge_branch, then ask about the rest.",
        )
    ask = (
        "For each object: which side should stand? Answer branch_a or branch_b for every one, with one or two "
        "sentences of reasoning."
    )
    return Question(
        _SYSTEM,
        f"{ask}\n\n{text}",
        object_schema({"resolutions": sides, "reasoning": {"type": "string"}}),
        check,
    )


def essence(conflicts: Sequence[MergeConflict]) -> Hash:
    """What a choice is based on: it holds as long as this stays the same."""
    shown: list[Json] = [
        [
            c.object_id,
            c.kind,
            *(None if obj is None else obj.hash.hex() for obj in (c.base, c.ours, c.theirs)),
        ]
        for c in conflicts
    ]
    return content_id(shown)


def _shown(conflict: MergeConflict) -> Json:
    entry = dict(conflict.as_json())
    entry["branch_a"] = entry.pop("target_diff")
    entry["branch_b"] = entry.pop("source_diff")
    return shrink(entry)


def _side(value: Json, object_id: str) -> Side:
    for side in SIDES:
        if value == side:
            return side
    raise NotAnAnswer(
        f"resolutions names {quoted(value)} for {quoted(object_id)}: it must be branch_a or branch_b"
    )
