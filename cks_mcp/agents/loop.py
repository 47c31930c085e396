"""The loop of every worker: claim, heartbeat, work, settle."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import anyio
import structlog

from cks_runtime.flow.bus import Subscription
from cks_runtime.flow.outbox import Held
from cks_runtime.model.errors import CksError, StaleClaim, TaskNotFound
from cks_runtime.model.events import ConflictRaised
from cks_runtime.runtime import Runtime

RENEWALS_A_LEASE = 3  # two may be late before the lease ends
STOP_SETTLE_S = 2.0  # of the five seconds that a stopped program has
SETTLE_S = 20.0
PAUSE_S = 1.0  # after the database could not be used

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Completed:
    """The work is done, or there was none left to do."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It did not work this time: try again later, up to the limit of attempts."""

    error: str


@dataclass(frozen=True, slots=True)
class DeadLettered:
    """No further try will help: a person must look."""

    error: str


@dataclass(frozen=True, slots=True)
class Released:
    """Not tried: the task goes back with its attempt, and this worker claims nothing for `pause_s`.

    For a worker whose means are missing (a model that does not answer), so that tasks keep their attempts.
    """

    pause_s: float


Settlement = Completed | Failed | DeadLettered | Released
Work = Callable[[Held], Awaitable[Settlement]]


@dataclass(slots=True)
class Tally:
    """What a worker's tasks came to. `lost`: the lease ended or another took over, so the result was dropped."""

    completed: int = 0
    failed: int = 0
    dead_lettered: int = 0
    released: int = 0
    lost: int = 0


class Worker:
    """One worker on one runtime.

    `work` gets a task and says what became of it; it must not block the event loop, and may be cancelled at any
    await: when the worker is stopped (then the task is released) or when its lease is lost (then what it returns
    would be dropped anyway). An exception from it is a failed attempt. `task_types` None means all.
    """

    def __init__(
        self,
        rt: Runtime,
        work: Work,
        *,
        name: str,
        task_types: Sequence[str] | None = None,
        poll_interval_s: float = 5.0,
        lease_s: float | None = None,
        attempts_max: int | None = None,
    ) -> None:
        self._outbox = rt.outbox
        self._bus = rt.bus
        self._work = work
        self.name = name
        self.owner = f"{name}:{socket.gethostname()}:{os.getpid()}"
        self._task_types = task_types
        self._poll_interval_s = poll_interval_s
        self._lease_s = rt.outbox.lease_s if lease_s is None else lease_s
        self._attempts_max = attempts_max
        self._stopping = False
        self._interruptible = anyio.CancelScope()
        self._ending = anyio.CancelScope()
        self.tally = Tally()
        self.current: Held | None = None

    def stop(self) -> None:
        """End the loop soon: a task at work is given back, one that is being settled is settled."""
        self._stopping = True
        self._interruptible.cancel()
        self._ending.deadline = min(self._ending.deadline, anyio.current_time() + STOP_SETTLE_S)

    async def run(self, *, once: bool = False) -> None:
        """Work until `stop`; with `once` until nothing is due. A new conflict wakes it before the next poll.

        Raises NotSupported on a store without an outbox; with `once` also what keeps the database from being used.
        """
        async with self._bus.subscribe(
            ConflictRaised, capacity=1, on_overflow="drop_newest", name=self.name
        ) as raised:
            while not self._stopping:
                held = await self._claim(once)
                if held is not None:
                    settled = await self._serve(held)
                    pause_s = settled.pause_s if isinstance(settled, Released) else 0.0
                    if pause_s and once:
                        return
                    await self._wait(pause_s, None)
                elif once:
                    return
                else:
                    await self._wait(self._poll_interval_s, raised)

    async def _claim(self, once: bool) -> Held | None:
        try:
            return await self._outbox.claim(
                self.owner, self._task_types, lease_s=self._lease_s, attempts_max=self._attempts_max
            )
        except CksError as error:
            if once or error.code != "internal_error":
                raise
            # a full or locked database must not end the worker: it looks again at the next poll
            log.error("claim failed", worker=self.name, error=error.message)
            return None

    async def _wait(self, seconds: float, raised: Subscription | None) -> None:
        if seconds <= 0 or self._stopping:
            return
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as self._interruptible:
            await (anyio.sleep_forever() if raised is None else raised.receive())

    async def _serve(self, held: Held) -> Settlement | None:
        """Work on one task and settle it; None when the claim was lost."""
        self.current = held
        settlement: Settlement | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._heartbeat, held)
            try:
                with anyio.CancelScope() as self._interruptible:
                    if not self._stopping:
                        settlement = await self._attempt(held)
            finally:
                settlement = await self._end(held, settlement or Released(0))
                self.current = None
                tasks.cancel_scope.cancel()
        return settlement

    async def _end(self, held: Held, settlement: Settlement) -> Settlement | None:
        """Settle whatever is cancelled meanwhile, in limited time: else the task comes back when its lease ends."""
        settled = None
        with anyio.CancelScope(shield=True) as self._ending:
            self._ending.deadline = anyio.current_time() + (STOP_SETTLE_S if self._stopping else SETTLE_S)
            settled = await self._settle(held, settlement)
        if self._ending.cancelled_caught:
            self.tally.lost += 1
            log.error("task left unsettled", worker=self.name, **_names(held))
        return settled

    async def _attempt(self, held: Held) -> Settlement:
        log.info("task claimed", worker=self.name, **_names(held))
        try:
            return await self._work(held)
        except CksError as error:
            return Failed(f"{error.code}: {error.message}")
        except Exception as error:
            # whatever a resolver stumbles over uses up this attempt, not the worker
            log.error("task failed", worker=self.name, **_names(held), exc_info=error)
            return Failed(f"{type(error).__name__}: {error}")

    async def _heartbeat(self, held: Held) -> None:
        pause_s = self._lease_s / RENEWALS_A_LEASE
        while True:
            await anyio.sleep(pause_s)
            try:
                await self._outbox.renew(held.task_id, held.token, lease_s=self._lease_s)
                pause_s = self._lease_s / RENEWALS_A_LEASE
            except (StaleClaim, TaskNotFound):
                # working on would be for nothing; settling finds out the same
                self._interruptible.cancel()
                return
            except CksError as error:
                log.warning("renewal failed", worker=self.name, error=error.message, **_names(held))
                pause_s = min(PAUSE_S, self._lease_s / RENEWALS_A_LEASE)

    async def _settle(self, held: Held, settlement: Settlement) -> Settlement | None:
        """Tell the outbox; tried again while the database cannot be used and the lease runs."""
        while True:
            try:
                await self._tell(held, settlement)
            except (StaleClaim, TaskNotFound) as error:
                self.tally.lost += 1
                log.warning("claim lost", worker=self.name, reason=error.message, **_names(held))
                return None
            except CksError as error:
                log.error("settling failed", worker=self.name, error=error.message, **_names(held))
                await anyio.sleep(PAUSE_S)
                continue
            log.info("task settled", worker=self.name, outcome=type(settlement).__name__, **_names(held))
            return settlement

    async def _tell(self, held: Held, settlement: Settlement) -> None:
        outbox, name = self._outbox, (held.task_id, held.token)
        match settlement:
            case Completed():
                await outbox.complete(*name)
                self.tally.completed += 1
            case Failed(error=error):
                await outbox.fail(*name, error, attempts_max=self._attempts_max)
                self.tally.failed += 1
            case DeadLettered(error=error):
                await outbox.dead_letter(*name, error)
                self.tally.dead_lettered += 1
            case Released():
                await outbox.release(*name)
                self.tally.released += 1


def _names(held: Held) -> dict[str, object]:
    return {"task_id": held.task_id, "task_type": held.task_type, "attempt": held.attempts}
