"""`python -m examples.demo`: plays every act; exit code 0 when all that was promised was seen."""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import anyio

from examples.demo import critic, documents, main_job, replicas
from examples.demo.stage import Stage

ACTS = (main_job.play, replicas.play, critic.play, documents.play)


async def play(stage: Stage) -> None:
    """Every act in order."""
    for act in ACTS:
        await act(stage)


def main() -> int:
    """Play in a temporary folder that is removed afterwards."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cks-demo-") as folder:
        stage = Stage(Path(folder))
        try:
            anyio.run(partial(play, stage))
        except BaseExceptionGroup as group:
            stage.check(False, f"the demonstration broke off: {_first(group)!r}")
        except (RuntimeError, OSError) as error:
            stage.check(False, f"the demonstration broke off: {error}")
        stage.say(f"{time.monotonic() - began:.1f} s")
        return stage.verdict()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


if __name__ == "__main__":
    sys.exit(main())
