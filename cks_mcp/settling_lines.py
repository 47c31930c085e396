"""Settling lines that clash: the model picks a side for each object, and the merge is made on what it saw."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from cks_mcp.arbitration.fence import cut
from cks_mcp.arbitration.merging import Side, essence, merge_question
from cks_mcp.settling import ROUNDS_MAX, Judge
from cks_runtime.flow.branches import MergeDone, MergeRefused
from cks_runtime.model.canon import Hash
from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.errors import HeadMoved, LlmAnswerRefused
from cks_runtime.model.merge import MergeConflict
from cks_runtime.runtime import Runtime

TRIES_MAX = 20
_SHOWN_MAX = 40


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a model chose: a side by object id, and why."""

    resolutions: dict[str, Side]
    reasoning: str
    model: str


async def settle_merge(
    rt: Runtime, target: str, source: str, *, judge: Judge, author: str
) -> tuple[MergeDone | MergeRefused, Chosen | None]:
    """Merge `source` into `target`, the model choosing where they clash; None where nothing had to be chosen.

    The merge is made on exactly the heads whose conflicts were judged; where one moved it is looked at again, and
    the model is asked again only when other things clash. Raises what `Branches.merge` raises, LlmUnavailable,
    LlmAnswerRefused, TooLarge.
    """
    answers: dict[Hash, Chosen] = {}
    for _ in range(TRIES_MAX):
        heads = ((await rt.sessions.get(target)).head, (await rt.sessions.get(source)).head)
        looked = await rt.branches.merge(target, source, dry_run=True, author=author)
        if isinstance(looked, MergeDone):
            return await rt.branches.merge(target, source, author=author), None
        key = essence(looked.conflicts)
        if key not in answers:
            if len(answers) == ROUNDS_MAX:
                break
            answers[key] = await _ask(judge, looked.conflicts)
        chosen = answers[key]
        try:
            merged = await rt.branches.merge(
                target,
                source,
                resolutions={**chosen.resolutions},
                expected_heads=heads,
                author=author,
                message=_message(target, source, chosen),
            )
        except HeadMoved:
            continue
        return merged, chosen
    raise LlmAnswerRefused(
        "The two lines kept changing while the model was deciding about them.",
        "Nothing was changed. Try again when they are quieter, or resolve by hand with merge_branch.",
    )


async def _ask(judge: Judge, conflicts: Sequence[MergeConflict]) -> Chosen:
    answered = await judge(merge_question(conflicts, secrets.token_hex(8)))
    resolutions, reasoning = answered.value
    return Chosen(resolutions, reasoning, answered.model)


def _message(target: str, source: str, chosen: Chosen) -> str:
    sides = [f"{quoted(id, 120)}: {side}" for id, side in chosen.resolutions.items()]
    more = f" and {len(sides) - _SHOWN_MAX} more" if len(sides) > _SHOWN_MAX else ""
    shown = ", ".join(sides[:_SHOWN_MAX]) + more
    return cut(
        f"Merge {source} into {target} by llm {chosen.model}\n{shown}\n{chosen.reasoning}".strip(), 3_999
    )
