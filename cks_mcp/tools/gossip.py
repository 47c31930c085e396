"""Tools that settle what replicas could not merge by themselves."""

from __future__ import annotations

from typing import Any, Literal

from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_mcp.settling_lines import settle_merge
from cks_mcp.tools.arbitrate import AutoResolve, MaxTokens, Model, llm_judge
from cks_mcp.tools.common import Args
from cks_mcp.tools.lines import MergeResult, merge_result
from cks_runtime.flow.branches import MergeRefused
from cks_runtime.flow.refusals import closed_error
from cks_runtime.flow.remote_lines import check_line_id, line_of
from cks_runtime.model.knowledge import check_session_id

gossip = Toolset("conflicts")

MANUAL = (
    "Nothing was merged and nothing was decided. Look at both sides (explain_diff with other_session_id), then call "
    "merge_branch with these two sessions, this base_version_id and a resolution for each conflict."
)


class ResolveGossipArgs(Args):
    target_session_id: str
    source_session_id: str
    auto_resolve: AutoResolve = False
    model: Model = None
    max_tokens: MaxTokens = None


class ResolvedGossip(MergeResult):
    """What `merge_branch` answers; with conflicts left, `policy` says what to do about them.

    `decision` is what an LLM chose: `{resolutions, reasoning}`.
    """

    policy: str | None = None
    decision: dict[str, Any] | None = None
    decision_source: Literal["llm"] | None = None
    model: str | None = None


@gossip.tool(open_world=True)
async def resolve_gossip_conflict(ctx: Ctx, args: ResolveGossipArgs) -> ResolvedGossip:
    """Try to settle a gossip conflict: merge the other side (source_session_id of the record) into the session.

    What merges is merged and the conflict closes on every replica; else the conflicts come back untouched, to be
    answered through merge_branch with resolutions, or by an LLM with auto_resolve: it picks a side for each.
    """
    rt = ctx.app.rt
    target = check_session_id(args.target_session_id, "target_session_id")
    source = check_line_id(args.source_session_id, "source_session_id")
    other = await rt.sessions.get(source)
    if other.closed and line_of(source) is None:
        raise closed_error(source)
    author = ctx.app.author(ctx, None)
    chosen = None
    if args.auto_resolve:
        judge = llm_judge(ctx, args.model, args.max_tokens)
        outcome, chosen = await settle_merge(rt, target, source, judge=judge, author=author)
    else:
        outcome = await rt.branches.merge(target, source, author=author)
    result = ResolvedGossip(**merge_result(outcome, target, source).model_dump())
    if isinstance(outcome, MergeRefused):
        result.policy = MANUAL
    if chosen is not None:
        result.decision = {"resolutions": {**chosen.resolutions}, "reasoning": chosen.reasoning}
        result.decision_source, result.model = "llm", chosen.model
    return result
