"""Anthropic's messages API: the answer is the input of a tool the model must call."""

from __future__ import annotations

import orjson

from cks_mcp.llm.provider import Reply, Request
from cks_mcp.llm.wire import Endpoint, post_json, strange

MODEL = "claude-haiku-4-5"
VERSION = "2023-06-01"
TOOL = "answer"


class Anthropic:
    """A model behind /v1/messages (https://docs.anthropic.com/en/api/messages)."""

    name = "anthropic"

    def __init__(self, base_url: str, key: str, model: str | None, timeout_s: float) -> None:
        self.model = model or MODEL
        headers = {"x-api-key": key, "anthropic-version": VERSION}
        self._endpoint = Endpoint("Anthropic", base_url, headers, timeout_s)

    async def reply(self, request: Request) -> Reply:
        """One exchange, the tool forced."""
        body = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "system": request.system,
            "messages": [{"role": turn.role, "content": turn.text} for turn in request.turns],
            "tools": [{"name": TOOL, "description": "Give the answer.", "input_schema": request.schema}],
            "tool_choice": {"type": "tool", "name": TOOL},
        }
        found = await post_json(self._endpoint, "/v1/messages", body)
        content = found.get("content")
        if not isinstance(content, list):
            raise strange(self._endpoint, "without content")
        cut = found.get("stop_reason") == "max_tokens"
        for block in content:
            if isinstance(block, dict) and block.get("type") == "tool_use" and block.get("name") == TOOL:
                return Reply(orjson.dumps(block.get("input")).decode(), self.model, cut)
        said = [block["text"] for block in content if isinstance(block, dict) and _is_text(block)]
        return Reply("\n".join(said), self.model, cut)


def _is_text(block: dict[str, object]) -> bool:
    return block.get("type") == "text" and isinstance(block.get("text"), str)
