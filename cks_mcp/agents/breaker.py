"""A circuit breaker: while a language model is down, tasks that need it are left alone and keep their attempts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import overload

PAUSE_S = 15.0
PAUSE_MAX_S = 300.0
SKIPS_MAX = 20
"""Tasks looked at in one pause, to find those that can be settled without the model."""


class Breaker:
    """Closed while the model answers; after a failure open for 15 s, then 30 s, … up to 5 minutes.

    `clock` gives seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause_s = PAUSE_S
        self._until = float("-inf")
        self._skipped: set[str] = set()
        self._seen_all = False
        self.failures = 0

    @property
    def is_open(self) -> bool:
        """Whether the model is not to be asked now."""
        return self._clock() < self._until

    @property
    def looks_on(self) -> bool:
        """Whether tasks may still be claimed to see if they need the model."""
        return not self.is_open or (not self._seen_all and len(self._skipped) < SKIPS_MAX)

    def failed(self) -> None:
        """The model did not answer."""
        self._until = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        self._skipped.clear()
        self._seen_all = False
        self.failures += 1

    def succeeded(self) -> None:
        """It answered."""
        self._until = float("-inf")
        self._pause_s = PAUSE_S
        self.failures = 0

    def skip(self, task_id: str) -> None:
        """A task needs the model and was put back; one that comes round again means that all were seen."""
        self._seen_all = self._seen_all or task_id in self._skipped
        self._skipped.add(task_id)


class Claimable(Sequence[str]):
    """The task types that may be claimed right now: those that need the model only while the breaker lets them."""

    def __init__(self, types: Sequence[str], needing: Sequence[str], breaker: Breaker) -> None:
        self._types = tuple(types)
        self._needing = frozenset(needing)
        self._breaker = breaker

    def now(self) -> tuple[str, ...]:
        """The types of this moment."""
        if self._breaker.looks_on:
            return self._types
        return tuple(name for name in self._types if name not in self._needing)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self.now()[index]

    def __len__(self) -> int:
        return len(self.now())
