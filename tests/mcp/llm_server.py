"""A real HTTP server on loopback that speaks Ollama's and Anthropic's APIs, as well or as badly as a script says."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Behaviour = Callable[["Exchange"], None]


@dataclass(slots=True)
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def schema(self) -> dict[str, Any]:
        """The form asked for, in either API."""
        if self.path == "/api/chat":
            return dict(self.body["format"])
        return dict(self.body["tools"][0]["input_schema"])

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The messages without the system prompt."""
        return [turn for turn in self.body["messages"] if turn["role"] != "system"]

    @property
    def data(self) -> Any:
        """What stands between the markers of the first message."""
        text = self.turns[0]["content"]
        return json.loads(text.split("\n")[-2])


class Exchange:
    """One request, and the ways to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, seen: Seen) -> None:
        self.handler = handler
        self.seen = seen

    def send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.handler.send_response(status)
        for name, value in {"content-length": str(len(body)), **(headers or {})}.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()
        self.handler.wfile.write(body)

    def say(self, text: str, *, cut: bool = False) -> None:
        """Answer with a model's text."""
        if self.seen.path == "/api/chat":
            wrapped: dict[str, Any] = {
                "model": self.seen.body["model"],
                "message": {"role": "assistant", "content": text},
                "done": True,
                "done_reason": "length" if cut else "stop",
            }
        else:
            try:
                block = {"type": "tool_use", "id": "toolu_1", "name": "answer", "input": json.loads(text)}
            except ValueError:
                block = {"type": "text", "text": text}
            wrapped = {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "model": self.seen.body["model"],
                "content": [block],
                "stop_reason": "max_tokens" if cut else "tool_use",
            }
        self.send(200, json.dumps(wrapped).encode())


class LlmServer:
    """Answers POSTs by the script, one behaviour each; the last one goes on for ever."""

    def __init__(self, *script: Behaviour) -> None:
        self.script = list(script)
        self.seen: list[Seen] = []
        self.gone = threading.Event()  # a client hung up while it was kept waiting
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers.get("content-length", 0)))
                seen = Seen(
                    self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(data or b"{}")
                )
                with outer._lock:
                    outer.seen.append(seen)
                    behaviour = outer.script[0] if len(outer.script) == 1 else outer.script.pop(0)
                try:
                    behaviour(Exchange(self, seen))
                except (BrokenPipeError, ConnectionResetError):
                    outer.gone.set()
                self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def says(value: Any, *, cut: bool = False) -> Behaviour:
    """A model that answers this, whatever it is asked."""
    text = value if isinstance(value, str) else json.dumps(value)
    return lambda exchange: exchange.say(text, cut=cut)


def refuses(status: int, headers: Mapping[str, str] | None = None, body: bytes = b"{}") -> Behaviour:
    """A server that answers with a status."""
    return lambda exchange: exchange.send(status, body, headers)


def slow(seconds: float, then: Behaviour) -> Behaviour:
    """A model that thinks for a while."""

    def behave(exchange: Exchange) -> None:
        time.sleep(seconds)
        then(exchange)

    return behave


def hangs(server: list[LlmServer]) -> Behaviour:
    """A model that never answers; `gone` is set when the client hangs up. `server` holds the server itself."""

    def behave(exchange: Exchange) -> None:
        exchange.handler.connection.settimeout(30)
        try:
            if exchange.handler.connection.recv(1) == b"":
                server[0].gone.set()
        except (TimeoutError, ConnectionResetError):
            server[0].gone.set()

    return behave


def breaks_off(exchange: Exchange) -> None:
    """Promises more than it sends."""
    exchange.handler.send_response(200)
    exchange.handler.send_header("content-length", "5000")
    exchange.handler.end_headers()
    exchange.handler.wfile.write(b'{"message": {"role": "assis')


def floods(exchange: Exchange) -> None:
    """Sends without end."""
    exchange.handler.send_response(200)
    exchange.handler.end_headers()
    while True:
        exchange.handler.wfile.write(b"x" * 65_536)


def first_offered(exchange: Exchange) -> None:
    """A well-behaved model that picks the first offered value everywhere."""
    exchange.say(json.dumps(_pick(exchange.seen.schema)))


def _pick(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {key: _pick(part) for key, part in schema["properties"].items()}
    return "Because the data says so."
