"""Processes of their own on a database, forked from one clean server so that none has to import anew."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator

import children

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["cks_runtime.runtime", "sweepers"])

WAIT_S = 60.0


class Child:
    """A process that runs one command of `children`; what it says arrives line by line."""

    def __init__(self, command: str, path: object, *arguments: object) -> None:
        self._hears, says = _context.Pipe(duplex=False)
        texts = tuple(str(argument) for argument in arguments)
        self.process = _context.Process(target=children.main, args=(says, command, str(path), *texts))
        self.process.start()
        says.close()

    def __iter__(self) -> Iterator[str]:
        """Every line until the process ends."""
        while True:
            line = self.line()
            if line is None:
                return
            yield line

    def line(self) -> str | None:
        """The next line, or None once the process ended."""
        assert self._hears.poll(WAIT_S), "the child says nothing"
        try:
            return self._hears.recv()
        except EOFError:
            return None

    def finish(self, code: int = 0) -> list[str]:
        """All further lines, once the process ended with this code."""
        lines = list(self)
        self.process.join(WAIT_S)
        assert self.process.exitcode == code, lines
        return lines

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.join(WAIT_S)
