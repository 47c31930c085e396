"""Logging to stderr, as text or JSON lines: it never blocks the server and never shows a secret."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
from collections.abc import Iterable
from typing import IO, Any

import structlog

SECRET_CHARACTERS_MIN = 6
"""Shorter secrets are not looked for: they would blot out ordinary words."""
_CHUNK_BYTES = 4096
_HIDDEN = "(secret)"
_SECRET_KEYS = frozenset(
    {"authorization", "token", "secret", "password", "api_key", "claim_token", "signature"}
)


class PatientStream:
    """Writes to a descriptor only what it takes at once.

    A client that does not read the server's stderr fills the pipe; then lines are dropped, counted, and the
    count is told when there is room again.
    """

    def __init__(self, file: IO[Any]) -> None:
        self._fd = file.fileno()
        self.dropped = 0

    def write(self, text: str) -> int:
        if self.dropped and self._room():
            lost, self.dropped = self.dropped, 0
            self._write(f"{lost} log lines were dropped because nobody read them\n".encode())
        if not self._write(text.encode("utf-8", "backslashreplace")):
            self.dropped += 1
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def _room(self) -> bool:
        return bool(select.select([], [self._fd], [], 0)[1])

    def _write(self, data: bytes) -> bool:
        try:
            for start in range(0, len(data), _CHUNK_BYTES):
                if not self._room():
                    return False
                os.write(self._fd, data[start : start + _CHUNK_BYTES])
        except OSError:
            return False
        return True


class _Redacting(structlog.stdlib.ProcessorFormatter):
    """Renders a record and takes every known secret out of the finished line, tracebacks included."""

    def __init__(self, secrets: Iterable[str], **options: Any) -> None:
        super().__init__(**options)
        spellings: set[str] = set()
        for secret in secrets:
            if len(secret) >= SECRET_CHARACTERS_MIN:
                spellings |= {secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
                spellings.add(repr(secret)[1:-1])
        self._secrets = sorted(spellings, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        for secret in self._secrets:
            line = line.replace(secret, _HIDDEN)
        return line


def _hide_by_key(_logger: Any, _method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    for key in event:
        if key in _SECRET_KEYS:
            event[key] = _HIDDEN
    return event


def configure_logging(*, level: str, format: str, secrets: Iterable[str] = ()) -> None:
    """Send all logging of the process, ours and the libraries', to stderr. `format` is console or json."""
    shared: list[structlog.types.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _hide_by_key,
    ]
    rendering: list[structlog.types.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if format == "json":
        rendering += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        rendering.append(structlog.dev.ConsoleRenderer(colors=False, exception_formatter=plain))
    handler = logging.StreamHandler(PatientStream(sys.__stderr__ or sys.stderr))
    handler.setFormatter(_Redacting(secrets, processors=rendering, foreign_pre_chain=shared))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # The SDK and the HTTP client tell every message at INFO, which is their DEBUG.
    for name in ("mcp", "httpx", "httpcore", "httpx2", "apscheduler", "aiosqlite", "asyncio"):
        logging.getLogger(name).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
