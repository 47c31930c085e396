"""Does a sweep cost what changed or fell due, or how many sessions there are?"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import anyio

from bench.report import line, medians_ms
from cks_runtime import Runtime, RuntimeConfig
from sweepers import InferenceStalenessSweeper, TemporalStalenessSweeper

SESSIONS = 1_000
START_MS = 1_800_000_000_000


class Clock:
    """A wall clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


def dated(number: int, second: int) -> dict[str, Any]:
    return {
        "op": "add_object",
        "identity": {"id": f"fact-{number}", "type": "Fact", "name": f"Fact {number}"},
        "structure": {"valid_until": f"2027-01-15T08:{second // 60 % 60:02d}:{second % 60:02d}Z"},
    }


async def main() -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="cks-bench-") as folder:
        config = RuntimeConfig(db_path=str(Path(folder) / "cks.db"), clock=clock)
        async with Runtime.open(config) as rt:
            for number in range(SESSIONS):
                await rt.commits.evolve(f"s{number}", [dated(number, 600 + number)], create=True)
            inference, temporal = InferenceStalenessSweeper(rt, None), TemporalStalenessSweeper(rt, None)
            await inference.sweep()
            await temporal.sweep()
            idle_ms, idle_due_ms = await medians_ms(
                50, lambda _: inference.sweep(), lambda _: temporal.sweep()
            )
            line("idle inference sweep over 1,000 sessions, ms", idle_ms, "< 5 ms", idle_ms < 5)
            line("idle due sweep over 1,000 sessions, ms", idle_due_ms, "< 5 ms", idle_due_ms < 5)
            clock.now_ms = START_MS + (600 + 10) * 1000 - 500
            ten = await temporal.sweep()
            clock.now_ms = START_MS + (600 + 110) * 1000 - 500
            hundred = await temporal.sweep()
            assert (ten.raised, hundred.raised) == (10, 100), (ten, hundred)
            each = hundred.took_ms / ten.took_ms
            line(
                "due sweep of 100 facts / of 10, both among 1,000 sessions",
                each,
                "<= 12 x",
                each <= 12,
                f"{hundred.took_ms:.0f} ms, {ten.took_ms:.0f} ms",
            )


if __name__ == "__main__":
    anyio.run(main)
