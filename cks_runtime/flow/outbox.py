"""The outbox: tasks that workers claim under a lease, and settle with the token that proves them the holder."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from cks_runtime.flow.clock import Clock
from cks_runtime.model.errors import InvalidParameter, NotSupported, TaskNotFound
from cks_runtime.model.outbox import (
    Claim,
    Complete,
    DeadLetter,
    Done,
    Fail,
    Leased,
    Now,
    Release,
    Renew,
    Retry,
    RetryPolicy,
    Signal,
    step,
)
from cks_runtime.store import outbox as rows
from cks_runtime.store.outbox import Status, TaskRow
from cks_runtime.store.ports import Store

LEASE_S_MAX = 100 * 365 * 86_400
ATTEMPTS_MAX = (1 << 63) - 1  # what a 64-bit column holds
ERROR_CHARS_MAX = 4000


@dataclass(frozen=True, slots=True)
class Held:
    """A claimed task. `expires_at_ms` tells the lease's end by the wall clock; what counts is the lease clock."""

    task_id: str
    task_type: str
    session_id: str
    payload: dict[str, Any]
    attempts: int
    token: str
    lease_s: float
    expires_at_ms: int


class Outbox:
    """The queue of tasks, one a conflict.

    A claim counts as an attempt and runs for a lease; only its token settles the task, and only while the lease
    runs: afterwards every call answers StaleClaim, whether or not another worker came. One exception: `complete`
    by the last holder succeeds when the task is off the queue already, because the answer to the same call was
    lost or because the conflict closed meanwhile. Raises NotSupported where the store has no outbox.
    """

    def __init__(
        self, store: Store, clock: Clock, types: Sequence[str], lease_s: float, attempts_max: int
    ) -> None:
        self._store = store
        self._clock = clock
        self.types = tuple(dict.fromkeys(types))
        self.lease_s = lease_s
        self.attempts_max = attempts_max

    @property
    def supported(self) -> bool:
        """Whether this store has an outbox; one in memory has none."""
        return self._store.has_outbox

    async def claim(
        self,
        owner: str,
        task_types: Sequence[str] | None = None,
        session_id: str | None = None,
        *,
        lease_s: float | None = None,
        attempts_max: int | None = None,
    ) -> Held | None:
        """The next task that is due or whose lease ended; None when there is none.

        `task_types` None means all. A task whose attempts are used up is dead-lettered instead of claimed, so it is
        claimed at most `attempts_max` times. Raises InvalidParameter for a type that does not exist.
        """
        self._require()
        types = self._known(task_types)
        if not types:
            return None
        claim = Claim(_text(owner)[:200], secrets.token_hex(16), self._lease_ms(lease_s))
        now, policy = await self._now(), self._policy(attempts_max)
        task = await rows.claim_task(self._store, types, session_id, claim, now.boot_id, now.wall_ms, policy)
        return None if task is None else _held(task, now)

    async def renew(self, task_id: str, token: str, *, lease_s: float | None = None) -> Held:
        """Begin the lease anew. Raises StaleClaim, TaskNotFound."""
        task, now = await self._signal(task_id, Renew(token, self._lease_ms(lease_s)))
        assert task is not None, "only the holder of a task on the queue can renew"
        return _held(task, now)

    async def complete(self, task_id: str, token: str) -> str | None:
        """Take the task off the queue; its conflict's record id, or None when it was off already.

        The conflict stays as it is: one that is still open is left without a task until its next occurrence.
        Raises StaleClaim, TaskNotFound.
        """
        self._require()
        # the common case is one statement; only where it did not apply the task is looked at
        key = await rows.complete_task(self._store, task_id, token, (await self._now()).boot_id)
        if key is None:
            await self._signal(task_id, Complete(token))
        return key

    async def fail(self, task_id: str, token: str, error: str, *, attempts_max: int | None = None) -> TaskRow:
        """Note that this attempt failed; the task after it, which is due again in d to 2d, d = min(2^attempt, 3600) s,
        or dead when that was the last attempt. Raises StaleClaim, TaskNotFound.
        """
        jitter = random.random()  # noqa: S311 (spreads load, guards nothing)
        task, _ = await self._signal(
            task_id, Fail(token, _text(error)[:ERROR_CHARS_MAX], jitter), attempts_max
        )
        assert task is not None, "failing keeps a task on the queue"
        return task

    async def dead_letter(self, task_id: str, token: str, error: str) -> TaskRow:
        """Put the task aside for a person. Raises StaleClaim, TaskNotFound."""
        task, _ = await self._signal(task_id, DeadLetter(token, _text(error)[:ERROR_CHARS_MAX]))
        assert task is not None, "dead-lettering keeps a task on the queue"
        return task

    async def release(self, task_id: str, token: str) -> None:
        """Give the task back untried: claimable at once, and the attempt is not used up. Raises as `complete`."""
        await self._signal(task_id, Release(token))

    async def retry(self, task_id: str) -> TaskRow:
        """Queue a dead task again from attempt 0; one that is not dead stays as it is. The task after it.

        Raises TaskNotFound.
        """
        task, _ = await self._signal(task_id, Retry())
        assert task is not None, "what is off the queue cannot be retried"
        return task

    async def get(self, task_id: str) -> TaskRow:
        """A task on the queue. Raises TaskNotFound."""
        self._require()
        async with self._store.reader() as reader:
            task = await rows.get_task(reader, task_id)
        if task is None:
            raise _unknown(task_id)
        return task

    async def page(
        self,
        status: Status,
        task_type: str | None = None,
        session_id: str | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 50,
    ) -> list[TaskRow]:
        """Tasks in one status, oldest first, after (created_at_ms, task_id) of the page before."""
        self._require()
        assert status in get_args(Status)
        if task_type is not None:
            self._known([task_type])
        async with self._store.reader() as reader:
            return await rows.page_tasks(reader, status, task_type, session_id, after, limit)

    async def depths(self) -> list[tuple[str, str, int, int]]:
        """(task type, status, count, oldest created_at in ms)."""
        async with self._store.reader() as reader:
            return await rows.queue_depths(reader)

    async def _signal(
        self, task_id: str, signal: Signal, attempts_max: int | None = None
    ) -> tuple[TaskRow | None, Now]:
        """Store what a signal makes of a task: the task after it (None: off the queue), and when."""
        self._require()
        async with self._store.unit() as unit:
            now = await self._now()
            task = await rows.get_task(unit, task_id)
            before = await rows.get_settled(unit, task_id) if task is None else task.state
            if before is None:
                raise _unknown(task_id)
            after = step(before, signal, now, self._policy(attempts_max))
            if task is not None and after != before:
                swapped = await rows.swap_state(unit, task, after)
                assert swapped, "units take turns, so what one has read cannot have changed"
        return (None if task is None or isinstance(after, Done) else replace(task, state=after)), now

    async def _now(self) -> Now:
        lease = await self._store.lease_clock()
        return Now(self._clock(), lease.now_ms, lease.boot_id)

    def _require(self) -> None:
        if not self.supported:
            raise NotSupported(
                "A store in memory has no outbox.", "Set CKS_MCP_DB_PATH to a file to work with tasks."
            )

    def _known(self, types: Sequence[str] | None) -> tuple[str, ...]:
        if types is None:
            return self.types
        for name in types:
            if name not in self.types:
                raise InvalidParameter(
                    f"there is no task type {name[:80]!r}",
                    f"the types are {', '.join(self.types)}",
                    argument="task_type",
                )
        return tuple(dict.fromkeys(types))

    def _lease_ms(self, lease_s: float | None) -> int:
        seconds = self.lease_s if lease_s is None else lease_s
        return max(1, int(min(seconds, LEASE_S_MAX) * 1000))

    def _policy(self, attempts_max: int | None) -> RetryPolicy:
        return RetryPolicy(min(self.attempts_max if attempts_max is None else attempts_max, ATTEMPTS_MAX))


def _held(task: TaskRow, now: Now) -> Held:
    lease = task.state
    assert isinstance(lease, Leased)
    return Held(
        task_id=task.task_id,
        task_type=task.task_type,
        session_id=task.session_id,
        payload=task.payload(),
        attempts=lease.attempts,
        token=lease.token,
        lease_s=lease.length_ms / 1000,
        # `now` was read just before the lease began: say rather too early than too late
        expires_at_ms=now.wall_ms + min(lease.until_ms - now.lease_ms, lease.length_ms),
    )


def _text(text: str) -> str:
    # what a worker says may hold what UTF-8 cannot carry
    return text.encode("utf-8", "backslashreplace").decode()


def _unknown(task_id: str) -> TaskNotFound:
    return TaskNotFound(
        f"There is no task {task_id[:200]!r} on the queue.", "claim_conflict_task gives the ids of tasks."
    )
