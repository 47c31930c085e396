"""The text form of a document tool's answer: `key: value` lines, a blank line, the body."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cks_runtime.model.documents import has_controls


def front_matter(fields: Mapping[str, object], body: str | None = None) -> str:
    """Fields that are None are left out. Without a body there is no blank line, so an empty body is not no body."""
    lines = "".join(f"{key}: {_value(value)}\n" for key, value in fields.items() if value is not None)
    return lines if body is None else f"{lines}\n{body}"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    # a value that could end its line would read as a key of its own, or as the body
    return json.dumps(text, ensure_ascii=False) if has_controls(text) else text
