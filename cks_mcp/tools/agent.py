"""Agent tools: the queue of conflicts to be settled, for worker processes and supervisors."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cks_mcp.answers import Result
from cks_mcp.arguments import Args
from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_runtime.flow.outbox import Held
from cks_runtime.model.knowledge import check_session_id
from cks_runtime.model.outbox import Dead, Leased, Ready
from cks_runtime.model.times import format_ms
from cks_runtime.store.outbox import TaskRow

agent = Toolset("agent")

TaskType = Annotated[
    str | None,
    Field(
        description=(
            "gossip_conflict, inference_conflict, provenance_conflict, temporal_conflict, crdt_fork or "
            "enrichment_request. Default: all."
        )
    ),
]
AllSessions = Annotated[str | None, Field(description="Default: all sessions.")]
TaskId = Annotated[str, Field(min_length=1, max_length=200)]
Token = Annotated[str, Field(min_length=1, max_length=200, description="claim_token of your claim.")]
Reason = Annotated[
    str, Field(min_length=1, max_length=100_000, description="What went wrong; kept with the task.")
]


class ClaimArgs(Args):
    task_type: TaskType = None
    session_id: AllSessions = None


class ClaimedTask(Result):
    task_id: str
    task_type: str
    session_id: str
    payload: dict[str, Any]
    attempts: int
    claim_token: str
    lease_expires_at: str


class ClaimAnswer(Result):
    """`task` is null when nothing is due."""

    supported: bool
    task: ClaimedTask | None = Field(default_factory=lambda: None)


class NoClaims(ClaimAnswer):
    """A store without an outbox names no task at all, not even null."""

    task: ClaimedTask | None = None


class HolderArgs(Args):
    task_id: TaskId
    claim_token: Token


class GiveUpArgs(HolderArgs):
    error: Reason


class RetryArgs(Args):
    task_id: TaskId


class Renewed(Result):
    supported: bool
    task_id: str | None = None
    lease_expires_at: str | None = None


class CompletedTask(Result):
    """`conflict_state` is that of the task's conflict, where it has one."""

    supported: bool
    task_id: str | None = None
    completed: bool | None = None
    conflict_state: str | None = None


class TaskState(Result):
    """`next_retry_at` of a task that waits, `dead_at` of one that is dead-lettered."""

    supported: bool
    task_id: str | None = None
    status: str | None = None
    attempts: int | None = None
    next_retry_at: str | None = None
    dead_at: str | None = None


@agent.tool()
async def claim_conflict_task(ctx: Ctx, args: ClaimArgs) -> ClaimAnswer:
    """Take the next conflict to settle off the queue, for the length of a lease. A claim counts as an attempt.

    Settle it, then call complete_conflict_task (or fail_conflict_task, dead_letter_conflict_task) with its
    claim_token before lease_expires_at, or renew_conflict_task in time. Only to look, use the list tools.
    """
    rt = ctx.app.rt
    if not rt.outbox.supported:
        return NoClaims(supported=False)
    session_id = None if args.session_id is None else check_session_id(args.session_id)
    types = None if args.task_type is None else [args.task_type]
    held = await rt.outbox.claim(f"{ctx.client_name or 'client'}@{rt.instance_id}", types, session_id)
    return ClaimAnswer(supported=True, task=None if held is None else _claimed(held))


def _claimed(held: Held) -> ClaimedTask:
    return ClaimedTask(
        task_id=held.task_id,
        task_type=held.task_type,
        session_id=held.session_id,
        payload=held.payload,
        attempts=held.attempts,
        claim_token=held.token,
        lease_expires_at=format_ms(held.expires_at_ms),
    )


@agent.tool(idempotent=True)
async def renew_conflict_task(ctx: Ctx, args: HolderArgs) -> Renewed:
    """Begin your lease on a task anew while you work on it. stale_claim means: stop, it is no longer yours."""
    outbox = ctx.app.rt.outbox
    if not outbox.supported:
        return Renewed(supported=False)
    held = await outbox.renew(args.task_id, args.claim_token)
    return Renewed(supported=True, task_id=held.task_id, lease_expires_at=format_ms(held.expires_at_ms))


@agent.tool(idempotent=True)
async def complete_conflict_task(ctx: Ctx, args: HolderArgs) -> CompletedTask:
    """Say that a task is done, after you committed what settles its conflict. It leaves the queue.

    It settles nothing by itself: a conflict that is still open stays open, without a task until it is raised again.
    """
    rt = ctx.app.rt
    if not rt.outbox.supported:
        return CompletedTask(supported=False)
    record_id = await rt.outbox.complete(args.task_id, args.claim_token)
    record = None if record_id is None else await rt.conflicts.get(record_id)
    return CompletedTask(
        supported=True,
        task_id=args.task_id,
        completed=True,
        conflict_state=None if record is None else record.state,
    )


@agent.tool()
async def fail_conflict_task(ctx: Ctx, args: GiveUpArgs) -> TaskState:
    """Say that this try failed. The task is due again later, at a time that grows with its attempts; at the limit of
    attempts it is dead-lettered. Where no further try can help, use dead_letter_conflict_task.
    """
    outbox = ctx.app.rt.outbox
    if not outbox.supported:
        return TaskState(supported=False)
    return _state(await outbox.fail(args.task_id, args.claim_token, args.error))


@agent.tool()
async def dead_letter_conflict_task(ctx: Ctx, args: GiveUpArgs) -> TaskState:
    """Put a task you hold aside for a person, because no further try can help; its conflict stays open.

    list_dead_lettered_conflicts shows it, retry_dead_letter brings it back.
    """
    outbox = ctx.app.rt.outbox
    if not outbox.supported:
        return TaskState(supported=False)
    return _state(await outbox.dead_letter(args.task_id, args.claim_token, args.error))


@agent.tool(idempotent=True)
async def retry_dead_letter(ctx: Ctx, args: RetryArgs) -> TaskState:
    """Put a dead-lettered task back on the queue, due at once and with no attempts used, after its cause was mended.

    A task that is not dead-lettered stays as it is.
    """
    outbox = ctx.app.rt.outbox
    if not outbox.supported:
        return TaskState(supported=False)
    return _state(await outbox.retry(args.task_id))


def _state(task: TaskRow) -> TaskState:
    shown = TaskState(supported=True, task_id=task.task_id)
    match task.state:
        case Ready(attempts=n, due_ms=due_ms):
            return shown.model_copy(
                update={"status": "PENDING", "attempts": n, "next_retry_at": format_ms(due_ms)}
            )
        case Leased(attempts=n):
            return shown.model_copy(update={"status": "IN_PROGRESS", "attempts": n})
        case Dead(attempts=n, at_ms=at_ms):
            dead_at = None if at_ms is None else format_ms(at_ms)
            return shown.model_copy(update={"status": "DEAD", "attempts": n, "dead_at": dead_at})
        case _:
            raise AssertionError("a task on the queue is not done")
