"""The critic: settles what a rule or a language model may decide, and puts aside what a person has to see."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio
import structlog

from cks_mcp.agents.breaker import Breaker, Claimable
from cks_mcp.agents.loop import Completed, DeadLettered, Failed, Released, Settlement, Worker
from cks_mcp.arbitration.inference import standing
from cks_mcp.llm.ask import Answered, Llm, LlmConfig
from cks_mcp.llm.provider import Question
from cks_mcp.settling import Case, Settled, check_now, settle_inference
from cks_mcp.temporal import Action, check_date_now, settle_temporal
from cks_runtime.flow.branches import MergeRefused
from cks_runtime.flow.outbox import Held
from cks_runtime.model.canon import Json
from cks_runtime.model.claims import CONCLUSION, STEP
from cks_runtime.model.diagnostics import CONFIDENCE_CONFLICT, STALE_PREMISE, quoted_ids
from cks_runtime.model.errors import InvalidKnowledge, InvalidParameter, LlmUnavailable, ObjectNotFound
from cks_runtime.model.graph import Graph
from cks_runtime.model.inference import is_step
from cks_runtime.runtime import Runtime

if TYPE_CHECKING:
    from cks_runtime.settings import Settings

T = TypeVar("T")
PROGRAM = "cks-critic-agent"
NAME = "critic"
SETTLED = ("gossip_conflict", "inference_conflict", "temporal_conflict")
"""Task types it can settle. An expired verification needs the source fetched again, so its task is left alone."""
NEEDING_A_MODEL = ("inference_conflict",)
REFUSED_REQUEST = (400, 413, 422)
"""HTTP statuses by which a model says that this very request is wrong, not that it is away."""

log = structlog.get_logger(__name__)


class Critic:
    """Says what became of a task; every edit is applied by compare-and-swap on what it was computed from."""

    def __init__(
        self, rt: Runtime, llm: Llm, breaker: Breaker, temporal_action: Literal["leave"] | Action
    ) -> None:
        self._rt = rt
        self._llm = llm
        self._breaker = breaker
        self._temporal_action = temporal_action
        self._author = f"{NAME}@{rt.replica_id}"

    async def work(self, held: Held) -> Settlement:
        """Settle one task."""
        match held.task_type:
            case "inference_conflict":
                return await self._inference(held)
            case "gossip_conflict":
                return await self._gossip(held)
            case "temporal_conflict":
                return await self._temporal(held)
            case other:
                raise AssertionError(f"the critic claims no {other}")

    async def _inference(self, held: Held) -> Settlement:
        """Both kinds of one task in one version: a winner by the model, replaced premises by the rule."""
        found = _diagnostics(held.payload)
        if not found:
            return DeadLettered("The task names no diagnostics, so there is nothing to settle by.")
        _, graph = await self._rt.sessions.head(held.session_id)
        case = _case(held.session_id, found, graph)
        if any(standing(graph, id).conflict for id in case.conclusion_ids) and self._breaker.is_open:
            self._breaker.skip(held.task_id)
            return Released(0)
        try:
            settled = await settle_inference(
                self._rt, case, judge=self._judge, commit=True, author=self._author, partly=True
            )
        except LlmUnavailable as error:
            if error.details.get("status") in REFUSED_REQUEST:
                # the model is there and will refuse this one again: it must not come back for ever
                return Failed(error.message)
            self._breaker.failed()
            log.warning("the language model is unavailable", reason=error.message, hint=error.hint)
            self._breaker.skip(held.task_id)
            return Released(0)
        self._report(held, settled)
        if settled.refused:
            return Failed("; ".join(f"{id}: {why}" for id, why in settled.refused.items()))
        return await self._closed(held, lambda: check_now(self._rt, held.session_id, _anchors(found)))

    async def _judge(self, question: Question[T], /) -> Answered[T]:
        answered = await self._llm.ask(question)
        self._breaker.succeeded()
        return answered

    def _report(self, held: Held, settled: Settled) -> None:
        """One line a part: what was decided, by whom, and what was only put right."""
        told = log.bind(task_id=held.task_id, session_id=held.session_id, version_id=settled.version_id)
        for stands in settled.standings:
            decision = settled.decisions.get(stands.conclusion_id)
            refused = settled.refused.get(stands.conclusion_id)
            if decision is not None:
                told.info(
                    "conclusion settled",
                    conclusion_id=stands.conclusion_id,
                    winner_id=decision.winner_id,
                    source=decision.source,
                    model=decision.model,
                    reasoning=decision.reasoning[:200],
                )
            elif refused is not None:
                told.warning("answer refused", conclusion_id=stands.conclusion_id, reason=refused)
            else:
                told.info("conclusion agrees already", conclusion_id=stands.conclusion_id)
        for premise in settled.premises:
            told.info(
                "premise rewritten" if premise.conflict else "premise is current already",
                premise_id=premise.premise_id,
                current_step_id=premise.current_step_id,
                steps=list(premise.citing),
                source="rule",
            )

    async def _gossip(self, held: Held) -> Settlement:
        """Lines that came to agree are merged; what really clashes is a person's."""
        source = held.payload.get("source_session_id")
        if not isinstance(source, str) or not source:
            return DeadLettered("The task names no other line (source_session_id).")
        if not await self._is_open(held):
            return Completed()
        message = f"Merge {source}, which agrees by now"
        try:
            merged = await self._rt.branches.merge(
                held.session_id, source, author=self._author, message=message
            )
        except InvalidKnowledge as error:
            return DeadLettered(f"The other line breaks a rule, so it cannot be merged: {error.message}")
        if isinstance(merged, MergeRefused):
            ids = quoted_ids(conflict.object_id for conflict in merged.conflicts)
            return DeadLettered(f"The two lines clash on {ids}: a person must choose.")
        if merged.no_op and await self._is_open(held):
            return Failed("The line is merged already, but its conflict is still open.")
        log.info("lines merged", task_id=held.task_id, session_id=held.session_id, source=source)
        return Completed()

    async def _temporal(self, held: Held) -> Settlement:
        ids = held.payload.get("object_ids")
        object_id = ids[0] if isinstance(ids, list) and ids else None
        if not isinstance(object_id, str) or self._temporal_action == "leave":
            return DeadLettered("The task names no object, or no action is set for it.")
        action = self._temporal_action
        try:
            done = await settle_temporal(
                self._rt,
                held.session_id,
                object_id,
                action,
                commit=True,
                author=self._author,
                source="rule",
                only_expired=True,
            )
            log.info(
                "date settled",
                task_id=held.task_id,
                session_id=held.session_id,
                object_id=object_id,
                action=action,
                previous_valid_until=done.previous_valid_until,
                new_valid_until=done.new_valid_until,
                version_id=done.version_id,
            )
        except (ObjectNotFound, InvalidParameter) as gone:
            log.info("date is no conflict any more", task_id=held.task_id, reason=gone.message)
        return await self._closed(held, lambda: check_date_now(self._rt, held.session_id, object_id))

    async def _closed(self, held: Held, check: Callable[[], Awaitable[object]]) -> Settlement:
        """Completed once the task's conflict is closed; `check` looks at the head where it is still open."""
        if await self._is_open(held):
            await check()
            if await self._is_open(held):
                return Failed("The conflict is still open after what could be settled.")
        return Completed()

    async def _is_open(self, held: Held) -> bool:
        record_id = held.payload.get("record_id")
        record = await self._rt.conflicts.get(record_id) if isinstance(record_id, str) else None
        return record is not None and record.state == "open"


def _diagnostics(payload: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = payload.get("diagnostics")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _named(found: list[dict[str, Any]], code: str, key: str) -> list[str]:
    values = (entry.get(key) for entry in found if entry.get("code") == code)
    return list(dict.fromkeys(value for value in values if isinstance(value, str)))


def _case(session_id: str, found: list[dict[str, Any]], graph: Graph) -> Case:
    """What the diagnostics name and the session still has."""
    conclusions = _named(found, CONFIDENCE_CONFLICT, "conclusion_id")
    premises = _named(found, STALE_PREMISE, "premise_id")
    return Case(
        session_id,
        tuple(id for id in conclusions if id in graph),
        tuple(id for id in premises if is_step(graph.get(id))),
    )


def _anchors(found: list[dict[str, Any]]) -> set[str]:
    """Where the claims of these diagnostics stand."""
    conclusions = _named(found, CONFIDENCE_CONFLICT, "conclusion_id")
    steps = _named(found, STALE_PREMISE, "location")
    return {CONCLUSION + id for id in conclusions} | {STEP + id for id in steps}


def claimed_types(settings: Settings) -> list[str]:
    """What is claimed under these settings; the rest waits for whoever can settle it."""
    wanted = dict.fromkeys(settings.critic_task_types)
    wanted.pop("temporal_conflict", None)
    if settings.critic_temporal_action != "leave":
        wanted["temporal_conflict"] = None
    left = [name for name in wanted if name not in SETTLED]
    if left:
        log.info("left to other agents", task_types=left)
    return [name for name in wanted if name in SETTLED]


@asynccontextmanager
async def open_critic(settings: Settings) -> AsyncIterator[Worker]:
    """The critic on the database of these settings."""
    from cks_mcp.agents.heartbeat import beating

    async with Runtime.open(settings.runtime_config()) as rt:
        breaker = Breaker(anyio.current_time)
        critic = Critic(rt, Llm(LlmConfig.of(settings)), breaker, settings.critic_temporal_action)
        types = claimed_types(settings)
        worker = Worker(
            rt,
            critic.work,
            name=NAME,
            task_types=Claimable(types, NEEDING_A_MODEL, breaker),
            poll_interval_s=settings.critic_poll_interval_s,
            attempts_max=settings.critic_max_retries,
        )

        def about() -> dict[str, Json]:
            return {"task_types": [*types], "llm": "unavailable" if breaker.is_open else "ok"}

        async with beating(rt, worker, about):
            log.info("the critic is at work", task_types=types, owner=worker.owner)
            yield worker


def main() -> None:
    """The program `cks-critic-agent`. Exit codes: 0 done or stopped, 2 wrong arguments or settings or no queue."""
    from cks_mcp.agents.program import parse_once, run_worker

    once = parse_once(
        PROGRAM, "Settle conflicts from the outbox: reasoning by a language model, the rest by rules."
    )
    from cks_runtime.logs import configure_logging
    from cks_runtime.model.errors import CksError
    from cks_runtime.settings import fail, settings_or_exit

    settings = settings_or_exit(PROGRAM)
    configure_logging(level=settings.log_level, format=settings.log_format, secrets=settings.secrets())
    try:
        run_worker(lambda: open_critic(settings), once=once)
    except CksError as error:
        fail(PROGRAM, error)
