"""Start and end of a server process: its standard streams, early signals and the last resort at exit.

Imports nothing slow, so a program can call it before the SDK is loaded (which takes most of the start).
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import sys
import threading
from dataclasses import dataclass
from types import FrameType

EXIT_DEADLINE_S = 4.5
"""The contract is five seconds from signal or end of input to exit."""


@dataclass(frozen=True, slots=True)
class StandardStreams:
    """Private descriptors of what were stdin and stdout; None for one that was closed at start."""

    input_fd: int | None
    output_fd: int | None


def claim_standard_streams() -> StandardStreams:
    """Keep stdin and stdout for the protocol alone.

    From here on descriptor 0 reads as empty and descriptor 1 is stderr, for this process and its children, so a
    stray print can never end up between two messages.
    """
    streams = StandardStreams(_private_copy(0), _private_copy(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(nothing, 0)
        try:
            os.dup2(2, 1)
        except OSError:
            os.dup2(nothing, 1)
    finally:
        if nothing > 2:
            os.close(nothing)
    sys.stdout = sys.stderr
    return streams


def _private_copy(fd: int) -> int | None:
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return None


def exit_on_early_signals() -> None:
    """Until the server runs and listens itself, SIGTERM and SIGINT end the process with code 0."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)


def _leave(_number: int, _frame: FrameType | None) -> None:
    # Nothing is open yet, and an exception raised in the middle of an import could be swallowed there.
    os._exit(0)


def pause_gc() -> None:
    """No collections while modules load: nearly everything they make stays for good."""
    gc.disable()


def resume_gc() -> None:
    """End of `pause_gc`: what exists by now is not looked at again."""
    gc.freeze()
    gc.enable()


def start_exit_deadline(seconds: float = EXIT_DEADLINE_S) -> threading.Timer:
    """Leave the process after `seconds` whatever still hangs (a thread in a system call cannot be cancelled)."""

    def leave() -> None:
        if select.select([], [2], [], 0)[1]:
            os.write(2, b"cks: shutdown took too long, leaving\n")
        os._exit(0)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    return timer
