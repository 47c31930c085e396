"""Settling conflicts about reasoning: look, decide, and commit what was decided, all or nothing.

The version, the head, the closed conflict and its task are one transaction. It is applied by compare-and-swap on the
version it was computed from; where that moved it is computed again, and a model is asked again only about
conclusions whose steps changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from cks_mcp.arbitration.inference import (
    Decision,
    Standing,
    batch_question,
    batches,
    one_question,
    require_active,
    standing,
)
from cks_mcp.arbitration.premises import Replaced
from cks_mcp.arbitration.settlement import Settlement, message, settle
from cks_mcp.llm.ask import Answered
from cks_mcp.llm.provider import Question
from cks_runtime.flow.commits import Plan, State
from cks_runtime.flow.graphs import in_worker
from cks_runtime.model.canon import Hash, Json
from cks_runtime.model.claims import Finding, inference_anchors, inference_findings
from cks_runtime.model.errors import LlmAnswerRefused
from cks_runtime.model.events import Event
from cks_runtime.model.graph import Graph, changes
from cks_runtime.model.history import Version
from cks_runtime.runtime import Runtime
from cks_runtime.store import sessions, sweeps
from cks_runtime.store.conflicts import ClaimRow
from cks_runtime.store.ports import Reader, Unit

T = TypeVar("T")
ROUNDS_MAX = 4
SWEEPER = "inference"


class Judge(Protocol):
    """Whoever answers closed questions."""

    async def __call__(self, question: Question[T], /) -> Answered[T]:
        """A checked answer. Raises LlmUnavailable, LlmAnswerRefused."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be settled in one session. `given` are decisions the caller made, by conclusion."""

    session_id: str
    conclusion_ids: tuple[str, ...] = ()
    stale_premise_ids: tuple[str, ...] = ()
    given: Mapping[str, Decision] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """How things stood, what was decided, and the version that holds it (None: none was needed or wanted).

    `refused`: why a model's answer about a conclusion was not taken.
    """

    standings: tuple[Standing, ...]
    decisions: Mapping[str, Decision]
    premises: tuple[Replaced, ...]
    rewritten: Mapping[str, Sequence[str]]
    version_id: str | None = None
    refused: Mapping[str, str] = field(default_factory=dict)


class _Outdated(Exception):
    """Steps that a model was asked about changed while it worked."""


async def settle_inference(
    rt: Runtime,
    case: Case,
    *,
    judge: Judge | None,
    commit: bool,
    author: str,
    partly: bool = False,
) -> Settled:
    """Settle a case; `judge` decides what the caller did not, without one that stays undecided.

    `partly`: a refused answer leaves that conclusion undecided instead of raising LlmAnswerRefused. Raises
    SessionNotFound, ObjectNotFound, InvalidParameter for a winner that is no active step, LlmUnavailable.
    """
    answers: dict[Hash, Decision] = {}
    refused: dict[Hash, str] = {}
    for _ in range(ROUNDS_MAX):
        _, graph = await rt.sessions.head(case.session_id)
        stands = [standing(graph, id) for id in case.conclusion_ids]
        if judge is not None:
            open_ones = [one for one in stands if one.conflict and one.conclusion_id not in case.given]
            await _ask(judge, open_ones, answers, refused, partly)
        attempt = _Attempt(rt, case, answers, refused, strict=judge is not None, author=author)
        if not commit:
            return (await attempt.look(graph))[1]
        try:
            moved = await rt.commits.advance(case.session_id, attempt.plan)
        except _Outdated:
            continue
        assert attempt.settled is not None, "the plan ran"
        version_id = None if moved.no_op else moved.version.id.hex()
        return _with_version(attempt.settled, version_id)
    raise LlmAnswerRefused(
        f"The steps changed {ROUNDS_MAX} times while the model was deciding about them.",
        "Nothing was changed. Try again when the session is quieter, or decide by hand.",
    )


async def _ask(
    judge: Judge,
    stands: Sequence[Standing],
    answers: dict[Hash, Decision],
    refused: dict[Hash, str],
    partly: bool,
) -> None:
    """Ask about what was not asked yet; a single conclusion in its own form, several in batches."""
    unasked = [
        one for one in stands if one.essence() not in answers and (not partly or one.essence() not in refused)
    ]
    for group in batches(unasked):
        try:
            verdicts, model = await _answers(judge, group)
        except LlmAnswerRefused as error:
            if not partly:
                raise
            refused.update({one.essence(): error.message for one in group})
            continue
        for one in group:
            winner, reasoning = verdicts[one.conclusion_id]
            answers[one.essence()] = Decision(winner, reasoning, "llm", model)


async def _answers(judge: Judge, group: Sequence[Standing]) -> tuple[Mapping[str, tuple[str, str]], str]:
    nonce = secrets.token_hex(8)
    if len(group) == 1:
        one = await judge(one_question(group[0], nonce))
        return {group[0].conclusion_id: one.value}, one.model
    many = await judge(batch_question(group, nonce))
    return many.value, many.model


class _Attempt:
    """One computation of the case on a head; run again by `advance` where the head moved."""

    def __init__(
        self,
        rt: Runtime,
        case: Case,
        answers: Mapping[Hash, Decision],
        refused: Mapping[Hash, str],
        *,
        strict: bool,
        author: str,
    ) -> None:
        self._rt = rt
        self._case = case
        self._answers = answers
        self._refused = refused
        self._strict = strict
        self._author = author
        self.settled: Settled | None = None

    async def look(self, graph: Graph) -> tuple[Settlement, Settled]:
        """What the decisions make of this graph. Raises _Outdated where one is missing by now."""
        stands = tuple(standing(graph, id) for id in self._case.conclusion_ids)
        decisions: dict[str, Decision] = {}
        refused: dict[str, str] = {}
        for one in stands:
            given = self._case.given.get(one.conclusion_id)
            if given is not None:
                require_active(one, given.winner_id, "winner_id")
            if not one.conflict:
                continue
            key = one.essence()
            decision = given or self._answers.get(key)
            if decision is not None:
                decisions[one.conclusion_id] = decision
            elif key in self._refused:
                refused[one.conclusion_id] = self._refused[key]
            elif self._strict:
                raise _Outdated
        limits = self._rt.config.limits
        made = await in_worker(lambda: settle(graph, decisions, self._case.stale_premise_ids, limits))
        return made, Settled(stands, decisions, made.premises, made.rewritten, refused=refused)

    async def plan(self, state: State, reader: Reader | None) -> Plan | None:
        """For `Commits.advance`: a closed session takes settlements too and stays closed."""
        made, self.settled = await self.look(state.graph)
        if made.graph.root == state.graph.root:
            return None
        changed = await in_worker(lambda: changes(state.graph, made.graph))
        self._rt.commits.require_valid([state.graph], made.graph, [id for id, _, _ in changed])
        anchors = inference_anchors(changed, made.graph)
        check = await inference_check(self._rt, state, made.graph, anchors, reader)
        stands = {one.conclusion_id: one for one in self.settled.standings}
        return Plan(
            made.graph,
            closed=state.row.closed,
            author=self._author,
            message=message(stands, self.settled.decisions, made),
            also=check,
        )


def _with_version(settled: Settled, version_id: str | None) -> Settled:
    return Settled(
        settled.standings,
        settled.decisions,
        settled.premises,
        settled.rewritten,
        version_id,
        settled.refused,
    )


async def inference_check(
    rt: Runtime, state: State, after: Graph, anchors: set[str], reader: Reader | None
) -> Callable[[Unit, Version], Awaitable[list[Event]]]:
    """What a plan adds to its commit: the rules' verdict on it, so that what it settled closes with it.

    A sweeper that stood at the version before is moved past this one, which it need not look at again.
    """
    row = state.row
    inherited: list[Json] = []
    if row.fork_session is not None and anchors:
        fork = await rt.graphs.version(row.fork_version, reader)
        graph = await rt.graphs.graph(fork.root, like=after, reader=reader)
        inherited = [finding.essence for finding in inference_findings(graph, anchors)]
    found = _own(inference_findings(after, anchors), inherited)

    async def check(unit: Unit, version: Version) -> list[Event]:
        if await sweeps.get_mark(unit, SWEEPER, row.session_id) == row.head:
            await sweeps.swap_mark(unit, SWEEPER, row.session_id, row.head, version.id)
        outcome = await rt.conflicts.reconcile(
            unit, "inference", row.session_id, version.id.hex(), found, anchors, rt.clock(), resolved
        )
        return list(outcome.events)

    return check


async def check_now(rt: Runtime, session_id: str, anchors: set[str]) -> int:
    """Reconcile the claims at these anchors with the head as it is; how many conflicts that raised."""
    async with rt.store.unit() as unit:
        row = await sessions.get_session(unit, session_id)
        if row is None:
            return 0
        graph = await rt.graphs.graph(row.root, reader=unit)
        inherited: list[Json] = []
        if row.fork_session is not None:
            fork = await rt.graphs.version(row.fork_version, unit)
            before = await rt.graphs.graph(fork.root, like=graph, reader=unit)
            inherited = [finding.essence for finding in inference_findings(before, anchors)]
        found = _own(inference_findings(graph, anchors), inherited)
        outcome = await rt.conflicts.reconcile(
            unit, "inference", session_id, row.head.hex(), found, anchors, rt.clock()
        )
    await rt.journal.told(outcome.events)
    return outcome.raised


def resolved(_: ClaimRow) -> str:
    """How a claim ended that a settlement took away."""
    return "resolved"


def _own(found: Sequence[Finding], inherited: Sequence[Json]) -> list[Finding]:
    """Without what a branch had at its fork point already: that belongs to its parent."""
    return [finding for finding in found if finding.essence not in inherited]
