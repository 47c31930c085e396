"""Cancels a piece of work at its n-th suspension, in anyio's way or in asyncio's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Literal

import anyio

How = Literal["scope", "task"]
HOWS: tuple[How, ...] = ("scope", "task")


class _Counted(Awaitable[Any]):
    """Runs a coroutine and calls `cancel` just before its n-th suspension."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int, cancel: Callable[[], object]) -> None:
        self._work = work
        self._at = at
        self._cancel = cancel
        self.suspensions = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                waiting_for = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as stop:
                return stop.value
            self.suspensions += 1
            if self.suspensions == self._at:
                self._cancel()
            answer, error = None, None
            try:
                answer = yield waiting_for
            except BaseException as raised:
                error = raised


async def cancelled_at(at: int, work: Coroutine[Any, Any, Any], how: How = "scope") -> bool:
    """Whether the work came to an `at`-th suspension, where it was cancelled."""
    if how == "scope":
        with anyio.CancelScope() as scope:
            counted = _Counted(work, at, scope.cancel)
            await counted
        return counted.suspensions >= at

    async def native() -> int:
        task = asyncio.current_task()
        assert task is not None
        counted = _Counted(work, at, task.cancel)
        try:
            await counted
        except asyncio.CancelledError:
            task.uncancel()
        return counted.suspensions

    return await asyncio.create_task(native()) >= at
