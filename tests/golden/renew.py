"""Writes `tools.json` anew: `python tests/golden/renew.py`, after a change of tools that is meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("tools.json")


def listed_tools() -> list[dict[str, Any]]:
    """The entries of `tools/list` that a server with the default settings gives, as they go over the wire."""
    from cks_mcp.offer import offer
    from cks_runtime.settings import Settings

    defaults = Settings.model_fields
    tools = offer(defaults["toolsets"].default, defaults["max_request_bytes"].default).tools
    return [tool.model_dump(by_alias=True, mode="json", exclude_none=True) for tool in tools.listed()]


def spelled(tools: list[dict[str, Any]]) -> str:
    """The text of the golden file: sorted by name and indented, so that a change is read as a diff."""
    ordered = sorted(tools, key=lambda tool: str(tool["name"]))
    return json.dumps(ordered, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    GOLDEN.write_text(spelled(listed_tools()), encoding="utf-8")
    print(f"{GOLDEN}: {len(listed_tools())} tools")
