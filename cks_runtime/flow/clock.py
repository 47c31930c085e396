"""The wall clock, passed as an argument to everything that needs the time."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]


def wall_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000
