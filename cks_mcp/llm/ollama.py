"""Ollama's chat API: the answer's form is its `format`."""

from __future__ import annotations

from cks_mcp.llm.provider import Reply, Request
from cks_mcp.llm.wire import Endpoint, is_reachable, post_json, strange

MODEL = "gemma3:4b"
CONTEXT_STEP = 2048
CONTEXT_MAX = 131_072


class Ollama:
    """A model that runs in an Ollama server (https://github.com/ollama/ollama/blob/main/docs/api.md)."""

    name = "ollama"

    def __init__(self, host: str, model: str | None, timeout_s: float) -> None:
        self.model = model or MODEL
        self._endpoint = Endpoint("Ollama", host, timeout_s=timeout_s)

    async def is_reachable(self) -> bool:
        """Whether a server listens."""
        return await is_reachable(self._endpoint, "/api/version")

    async def reply(self, request: Request) -> Reply:
        """One exchange through /api/chat."""
        turns = [{"role": turn.role, "content": turn.text} for turn in request.turns]
        body = {
            "model": self.model,
            "stream": False,
            "format": request.schema,
            "messages": [{"role": "system", "content": request.system}, *turns],
            "options": {
                "temperature": 0,
                "num_predict": request.max_tokens,
                "num_ctx": context_size(request),
            },
        }
        found = await post_json(self._endpoint, "/api/chat", body)
        message = found.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, str):
            raise strange(self._endpoint, "without a message")
        return Reply(content, self.model, cut=found.get("done_reason") == "length")


def context_size(request: Request) -> int:
    """Tokens of context to ask for: Ollama silently drops the start of a prompt that does not fit its default."""
    characters = len(request.system) + sum(len(turn.text) for turn in request.turns)
    wanted = characters // 2 + request.max_tokens + 512
    return min(CONTEXT_MAX, -(-wanted // CONTEXT_STEP) * CONTEXT_STEP)
