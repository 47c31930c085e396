"""JSON bytes for answers: whatever text a caller sent, the bytes that go out are valid UTF-8 JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson


def dump_json(value: Any) -> bytes:
    """Compact JSON of `value`; text that UTF-8 cannot carry and numbers beyond JSON are spelt out or null.

    Raises TypeError for what is no JSON value at all, RecursionError for values nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        # orjson refuses lone surrogates and integers beyond 64 bits; both are legal in a Python value.
        return json.dumps(scrub(value), ensure_ascii=True, separators=(",", ":")).encode()


def scrub(value: Any) -> Any:
    """The same value with lone surrogates written as `\\udXXX` text and non-finite numbers as null."""
    match value:
        case str():
            return scrub_text(value)
        case dict():
            return {scrub_text(key): scrub(item) for key, item in value.items()}
        case list() | tuple():
            return [scrub(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def scrub_text(text: str) -> str:
    """The same text with lone surrogates written as `\\udXXX`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(value: object, length_max: int = 80) -> str:
    """How a message shows a caller's value: short, on one line, containers by their kind only."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case dict():
            return "an object"
        case list() | tuple():
            return "a list"
        case str():
            cut = value if len(value) <= length_max else value[:length_max] + "…"
            return "the string " + json.dumps(scrub_text(cut), ensure_ascii=False)
        case int() if value.bit_length() > 256:
            return "a number of more than 77 digits"
        case _:
            return str(value)[:length_max]


def shorten_name(name: str) -> str:
    """How a message shows a name between quotes: at most 80 characters, valid text on one line."""
    return shorten(name).removeprefix('the string "').removesuffix('"')
