"""How every benchmark tells its figures: one line each, with the limit that is promised."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable


def line(name: str, value: float, limit: str, ok: bool, detail: str = "") -> None:
    """One figure: what, how much, what was promised, and whether it holds."""
    print(f"{name:<66}{value:>10.2f}  {limit:<12}{'ok' if ok else 'OVER':<6}{detail}", flush=True)


async def medians_ms(rounds: int, *works: Callable[[int], Awaitable[object]]) -> list[float]:
    """The median time of each piece of work in milliseconds; they take turns, so that noise hits all alike."""
    spent: list[list[float]] = [[] for _ in works]
    for turn in range(rounds):
        for times, work in zip(spent, works, strict=True):
            began = time.perf_counter()
            await work(turn)
            times.append(time.perf_counter() - began)
    return [statistics.median(times) * 1000 for times in spent]
