"""What a tool answers: results and errors in one shape, small enough for a model's context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict

from cks_mcp.plain import dump_json, scrub, scrub_text
from cks_mcp.trimming import trimmed
from cks_runtime.model.errors import TooLarge

ANSWER_BYTES_MAX = 60_000
"""Text and structured content of one answer together, as they go over the wire."""
ENVELOPE_BYTES = 1_000
"""Kept free for what stands around the two: id, version stamp, field names."""
PAGE_BYTES = 24_000
"""Items up to this size leave room for the text copy beside them."""
SUMMARY_BYTES = 2_000
ROOM_BYTES = ANSWER_BYTES_MAX - ENVELOPE_BYTES


class Result(BaseModel):
    """Base of a tool's result. A field whose default is None is left out of the answer while it is None."""

    model_config = ConfigDict(defer_build=True)


R = TypeVar("R", bound=BaseModel, covariant=True)


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """A result with a text block of its own, or one that may be as long as it is (`unlimited`)."""

    result: R
    text: str | None = None
    unlimited: bool = False


def as_json(value: Any) -> Any:
    """JSON of a result; free JSON inside it is passed on as it is."""
    match value:
        case BaseModel():
            made: dict[str, Any] = {}
            for name, field in type(value).model_fields.items():
                item = getattr(value, name)
                if item is None and not field.is_required() and field.default is None:
                    continue
                made[field.serialization_alias or field.alias or name] = as_json(item)
            if value.model_extra:
                made.update(value.model_extra)
            return made
        case list() | tuple():
            return [as_json(item) for item in value]
        case dict():
            return {key: as_json(item) for key, item in value.items()}
        case _:
            return value


def fitting(items: Sequence[Any], budget: int = PAGE_BYTES) -> int:
    """How many of the first items (JSON or results) fit a page; at least one, so that paging moves on."""
    used = 0
    for count, item in enumerate(items):
        used += len(dump_json(as_json(item))) + 1
        if used > budget:
            return max(count, 1)
    return len(items)


def success(answer: Answer[Any], *, trims: bool) -> dict[str, Any]:
    """The wire form of a result.

    Raises TooLarge when it is over the limit, unless `trims`: after a write an answer must not turn into an
    error, so there long lists and texts are cut and `truncated` says so.
    """
    structured, size = plain(as_json(answer.result))
    if answer.unlimited:
        return _wire(structured, _full(structured) if answer.text is None else answer.text, is_error=False)
    text_bytes = SUMMARY_BYTES if answer.text is None else len(dump_json(answer.text))
    if size + text_bytes > ROOM_BYTES:
        if not trims or text_bytes > ROOM_BYTES // 2:
            raise TooLarge(
                f"the answer would take {size + text_bytes} bytes, an answer may have {ANSWER_BYTES_MAX}",
                "ask for less at once: a smaller limit or depth, or one object by its id",
                bytes=size + text_bytes,
                bytes_max=ANSWER_BYTES_MAX,
            )
        structured = trimmed(structured, ROOM_BYTES - text_bytes)
    return _wire(structured, _text(structured) if answer.text is None else answer.text, is_error=False)


def failure(error: dict[str, Any]) -> dict[str, Any]:
    """The wire form of an error `{code, message, hint, details}`."""
    structured, _ = plain(error)
    structured = trimmed(structured, ROOM_BYTES - SUMMARY_BYTES)
    return _wire(structured, _text(structured), is_error=True)


def _wire(structured: dict[str, Any], text: str, *, is_error: bool) -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": scrub_text(text)}],
        "structuredContent": structured,
        "isError": is_error,
        "resultType": "complete",
    }


def plain(value: Any) -> tuple[Any, int]:
    """The value as any JSON reader takes it, and its size in bytes.

    The SDK refuses a whole answer for one lone surrogate in it, so such text is spelt out here.
    """
    try:
        return value, len(orjson.dumps(value))
    except TypeError:
        readable = scrub(value)
        return readable, len(dump_json(readable))


def _full(structured: dict[str, Any]) -> str:
    return dump_json(structured).decode()


def _text(structured: dict[str, Any]) -> str:
    """Compact JSON for readers of text alone where both fit, else a summary of it."""
    full = _full(structured)
    fits = len(full.encode()) + len(dump_json(full)) <= ROOM_BYTES
    return full if fits else summary(structured)


def summary(structured: dict[str, Any]) -> str:
    """One line that names every key, with counts for lists; the rest stands in the structured content."""
    line = "The full answer is in structuredContent: "
    parts: list[str] = []
    for key, value in structured.items():
        part = f"{key}: {dump_json(_brief(value)).decode()}"
        if len(dump_json(line + ", ".join([*parts, part]))) > SUMMARY_BYTES - 8:
            parts.append("…")
            break
        parts.append(part)
    return line + ", ".join(parts)


def _brief(value: Any) -> Any:
    match value:
        case list():
            return f"{len(value)} items"
        case dict():
            return f"object with {len(value)} keys"
        case str() if len(value) > 80:
            return value[:80] + "…"
        case _:
            return value
