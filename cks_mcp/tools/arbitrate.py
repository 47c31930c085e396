"""Tools that settle what the list tools show: disagreeing or outdated reasoning, and facts past their date."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import anyio
from pydantic import Field

from cks_mcp.answers import Result
from cks_mcp.arbitration.inference import Decision, Standing, step_json
from cks_mcp.calls import Toolset
from cks_mcp.llm.ask import Answered
from cks_mcp.llm.provider import MAX_TOKENS_MAX, Question
from cks_mcp.services import Ctx
from cks_mcp.settling import Case, Judge, Settled, settle_inference
from cks_mcp.temporal import settle_temporal
from cks_mcp.tools.common import Args, SessionId, Text, session_or_default
from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.errors import CksError, InvalidParameter

arbitration = Toolset("conflicts")

T = TypeVar("T")
PROGRESS_S = 2.0

Id = Annotated[str, Field(min_length=1, max_length=512)]
Model = Annotated[
    str | None,
    Field(max_length=200, pattern=r"^[\w./:@-]+$", description="Default: CKS_LLM_MODEL, else a small one."),
]
MaxTokens = Annotated[int | None, Field(ge=1, le=MAX_TOKENS_MAX, description="Bound of the LLM's answer.")]
AutoResolve = Annotated[bool, Field(description="Let the configured LLM decide what you do not.")]
Commit = Annotated[bool, Field(description="Keep the decision as a version; otherwise only show it.")]


class ArbitrateArgs(Args):
    session_id: SessionId = None
    conclusion_id: Id | None = None
    conclusion_ids: Annotated[list[Id], Field(min_length=1, max_length=100)] | None = None
    stale_premise_ids: Annotated[
        list[Id] | None,
        Field(
            min_length=1,
            max_length=200,
            description="Superseded premises: every active step that cites one is rewritten to its current step.",
        ),
    ] = None
    winner_id: Annotated[Id | None, Field(description="The step that stands, with conclusion_id.")] = None
    winners: Annotated[dict[str, Id] | None, Field(description="{conclusion_id: step_id}")] = None
    reasoning: Text | None = None
    auto_resolve: AutoResolve = False
    commit: Commit = False
    model: Model = None
    max_tokens: MaxTokens = None


class Arbitrated(Result):
    session_id: str
    conflict: bool
    active_steps: list[dict[str, Any]] | None = None
    decision: dict[str, Any] | None = None
    decision_source: Literal["caller", "llm", "rule"] | None = None
    model: str | None = None
    results: list[dict[str, Any]] | None = None
    version_id: str | None = None


@arbitration.tool(open_world=True)
async def arbitrate_inference_conflict(ctx: Ctx, args: ArbitrateArgs) -> Arbitrated:
    """Settle steps that reach one conclusion with different confidence, and steps that cite a replaced premise.

    Without a winner it shows what stands against what. Name winner_id (or winners), or let an LLM choose among the
    active steps with auto_resolve; commit=true keeps it, everything of one call in one version.
    """
    case = _case(ctx, args)
    author = ctx.app.author(ctx, None)
    judge = llm_judge(ctx, args.model, args.max_tokens) if args.auto_resolve else None
    if args.commit and judge is None and not case.given:
        _require_decidable(await settle_inference(ctx.app.rt, case, judge=None, commit=False, author=author))
    settled = await settle_inference(ctx.app.rt, case, judge=judge, commit=args.commit, author=author)
    items = _items(settled)
    if args.conclusion_id is None:
        return _batch(case, settled, items)
    single = items[0]
    return Arbitrated(
        session_id=case.session_id,
        conflict=single["conflict"],
        active_steps=single["active_steps"],
        decision=single.get("decision"),
        decision_source=single.get("decision_source"),
        model=single.get("model"),
        results=items if len(items) > 1 else None,
        version_id=settled.version_id,
    )


def _batch(case: Case, settled: Settled, items: list[dict[str, Any]]) -> Arbitrated:
    sources = {item["decision_source"] for item in items if "decision_source" in item}
    return Arbitrated(
        session_id=case.session_id,
        conflict=any(item["conflict"] for item in items),
        decision_source=sources.pop() if len(sources) == 1 else None,
        results=items,
        version_id=settled.version_id,
    )


def _case(ctx: Ctx, args: ArbitrateArgs) -> Case:
    if args.conclusion_id is not None and args.conclusion_ids is not None:
        raise InvalidParameter(
            "Give conclusion_id or conclusion_ids, not both.", "Leave one out.", argument="conclusion_ids"
        )
    named = [args.conclusion_id] if args.conclusion_id is not None else (args.conclusion_ids or [])
    if not named and not args.stale_premise_ids:
        raise InvalidParameter(
            "None of conclusion_id, conclusion_ids and stale_premise_ids is given.",
            "Take them from the diagnostics of list_inference_conflicts.",
            argument="conclusion_id",
        )
    return Case(
        session_or_default(ctx, args.session_id),
        tuple(dict.fromkeys(named)),
        tuple(dict.fromkeys(args.stale_premise_ids or [])),
        _given(args, named),
    )


def _given(args: ArbitrateArgs, named: list[str]) -> dict[str, Decision]:
    reasoning = args.reasoning or ""
    if args.winner_id is not None:
        if args.winners is not None or args.conclusion_id is None:
            raise InvalidParameter(
                "winner_id goes with conclusion_id, and not with winners.",
                "For several conclusions give winners {conclusion_id: step_id}.",
                argument="winner_id",
            )
        return {args.conclusion_id: Decision(args.winner_id, reasoning, "caller")}
    for id in args.winners or {}:
        if id not in named:
            raise InvalidParameter(
                f"winners names {quoted(id)}, which is none of the conclusions of this call.",
                "Name it in conclusion_id or conclusion_ids too.",
                argument="winners",
            )
    return {id: Decision(winner, reasoning, "caller") for id, winner in (args.winners or {}).items()}


def _require_decidable(looked: Settled) -> None:
    undecided = [one.conclusion_id for one in looked.standings if one.conflict]
    if undecided and not looked.rewritten:
        raise InvalidParameter(
            f"commit=true, but nothing says which step should stand for {quoted(undecided[0])}.",
            "Give winner_id or winners, or auto_resolve=true.",
            argument="winner_id",
        )


def _items(settled: Settled) -> list[dict[str, Any]]:
    items = [_conclusion(one, settled.decisions.get(one.conclusion_id)) for one in settled.standings]
    for premise in settled.premises:
        item: dict[str, Any] = {
            "premise_id": premise.premise_id,
            "current_step_id": premise.current_step_id,
            "conflict": premise.conflict,
        }
        if premise.conflict:
            kept = {id: list(settled.rewritten[id]) for id in premise.citing}
            item["decision"] = {"current_step_id": premise.current_step_id, "premises": kept}
            item["decision_source"] = "rule"
        items.append(item)
    return items


def _conclusion(stands: Standing, decision: Decision | None) -> dict[str, Any]:
    item: dict[str, Any] = {
        "conclusion_id": stands.conclusion_id,
        "conflict": stands.conflict,
        "active_steps": [step_json(step) for step in stands.steps],
    }
    if decision is not None:
        lost = [id for id in stands.step_ids if id != decision.winner_id]
        item["decision"] = {
            "winner_id": decision.winner_id,
            "reasoning": decision.reasoning,
            "superseded_step_ids": lost,
        }
        item["decision_source"] = decision.source
        if decision.model:
            item["model"] = decision.model
    return item


def llm_judge(ctx: Ctx, model: str | None, max_tokens: int | None) -> Judge:
    """The configured LLM, reporting progress while it works; cancelling the call ends its request at once."""

    async def judge(question: Question[T], /) -> Answered[T]:
        answered: list[Answered[T]] = []
        failed: list[CksError] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_tick, ctx)
            try:
                answered.append(await ctx.app.llm.ask(question, model=model, max_tokens=max_tokens))
            except CksError as error:
                failed.append(error)  # raised below as itself, not wrapped by the task group
            tasks.cancel_scope.cancel()
        if failed:
            raise failed[0]
        return answered[0]

    return judge


async def _tick(ctx: Ctx) -> None:
    began = anyio.current_time()
    while True:
        passed_s = anyio.current_time() - began
        await ctx.progress(passed_s, None, f"The language model is at work ({passed_s:.0f} s).")
        await anyio.sleep(PROGRESS_S)


class TemporalArgs(Args):
    session_id: SessionId = None
    object_id: Id
    action: Annotated[
        Literal["bump", "archive", "ignore"],
        Field(
            description=(
                "bump: valid_until counts on from now (or from a later date); archive: out of force, kept; "
                "ignore: acknowledge, this expiry is not raised again."
            )
        ),
    ]
    extend_by_days: Annotated[int, Field(ge=1, le=36_500)] = 30
    commit: Commit = False


class DatedObject(Result):
    """`expired`: whether it was past its date; `acknowledged` after an ignore that was committed."""

    session_id: str
    object_id: str
    action: str
    expired: bool
    previous_valid_until: str | None
    new_valid_until: str | None
    version_id: str | None = None
    acknowledged: bool = False


@arbitration.tool()
async def resolve_temporal_conflict(ctx: Ctx, args: TemporalArgs) -> DatedObject:
    """Settle a fact past its valid_until: extend it, archive it, or acknowledge that it may stand.

    Without commit=true it only shows what would be done. Check the fact first: bump does not.
    """
    session_id = session_or_default(ctx, args.session_id)
    done = await settle_temporal(
        ctx.app.rt,
        session_id,
        args.object_id,
        args.action,
        extend_by_days=args.extend_by_days,
        commit=args.commit,
        author=ctx.app.author(ctx, None),
    )
    return DatedObject(
        session_id=session_id,
        object_id=args.object_id,
        action=args.action,
        expired=done.expired,
        previous_valid_until=done.previous_valid_until,
        new_valid_until=done.new_valid_until,
        version_id=done.version_id,
        acknowledged=done.record_id is not None,
    )
