"""A local stand-in for Ollama: real HTTP, no model. It prefers the step with the longer justification."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

THINKS_S = 1.0


class StandIn:
    """What was asked so far; `busy` is set while it thinks."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.asked: list[dict[str, Any]] = []
        self.busy = threading.Event()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Ollama's reply to /api/chat, the content in the form that was asked for."""
        self.asked.append(body)
        self.busy.set()
        time.sleep(THINKS_S)
        self.busy.clear()
        data = json.loads(body["messages"][1]["content"].split("\n")[-2])
        many = isinstance(data, list)
        decisions = {
            entry["conclusion"]["id"]: _judge(entry["steps"]) for entry in (data if many else [data])
        }
        content: Any = {"decisions": decisions} if many else next(iter(decisions.values()))
        message = {"role": "assistant", "content": json.dumps(content)}
        return {"model": body["model"], "message": message, "done": True, "done_reason": "stop"}


def _judge(steps: list[dict[str, Any]]) -> dict[str, str]:
    best = max(steps, key=lambda step: len(step["justification"] or ""))
    return {"winner_id": best["step_id"], "reasoning": f"Best justified: {best['justification']}"}


@contextmanager
def stand_in() -> Iterator[StandIn]:
    """Serve on a free port of this machine while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"version": "stand-in"})

        def do_POST(self) -> None:
            self._send(model.answer(json.loads(self.rfile.read(int(self.headers["content-length"])))))

        def _send(self, value: dict[str, Any]) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            """The stage tells what happens."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model = StandIn(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
