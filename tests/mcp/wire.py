"""A raw client for stdio servers: sends bytes, reads lines against a deadline, and hides nothing."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ECHO_SERVER = [sys.executable, str(Path(__file__).parent / "echo_server.py")]


class Wire:
    """One server process. `read` fails after ten seconds, so a server that hangs is a failed test."""

    def __init__(
        self, command: list[str], *, environment: dict[str, str] | None = None, **options: Any
    ) -> None:
        self.process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **options},
        )
        self._buffer = b""
        self._next_id = 1000

    def send(self, data: bytes | dict[str, Any]) -> None:
        line = data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n"
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def read(self, seconds: float = 10.0) -> dict[str, Any]:
        """The next message; whatever is no JSON-RPC message fails the test."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.process.stdout], [], [], left)[0]
            assert ready, "the server did not answer in time"
            chunk = os.read(self.process.stdout.fileno(), 65_536)
            assert chunk, "the server closed its output"
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line.decode("utf-8"))
        assert message["jsonrpc"] == "2.0"
        return message

    def request(self, method: str, params: dict[str, Any] | None = None) -> int:
        self._next_id += 1
        self.send(
            {
                "jsonrpc": "2.0",
                "id": self._next_id,
                "method": method,
                **({"params": params} if params else {}),
            }
        )
        return self._next_id

    def ping(self, seconds: float = 10.0) -> list[dict[str, Any]]:
        """Ping and wait for its answer; returns what came before it."""
        wanted = self.request("ping")
        before: list[dict[str, Any]] = []
        while (message := self.read(seconds)).get("id") != wanted:
            before.append(message)
        assert message["result"] == {}
        return before

    def call(
        self, tool: str, arguments: dict[str, Any] | None = None, seconds: float = 10.0
    ) -> dict[str, Any]:
        """The result of a tool call, when nothing else is under way."""
        wanted = self.request("tools/call", {"name": tool, "arguments": arguments or {}})
        message = self.read(seconds)
        assert message["id"] == wanted, message
        result: dict[str, Any] = message["result"]
        return result

    def start(self) -> Self:
        """The handshake of the older protocol."""
        client = {"name": "wire", "version": "1"}
        wanted = self.request(
            "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        )
        assert self.read(60)["id"] == wanted
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def end(self, seconds: float = 5.0) -> int:
        """The exit code; the process has to be on its way out already."""
        code = self.process.wait(seconds)
        self.close()
        return code

    def rest(self) -> bytes:
        """Everything the process still wrote."""
        assert self.process.stdout is not None
        return self._buffer + self.process.stdout.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(
                    BrokenPipeError
                ):  # what it still held was for a process that is gone
                    stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
