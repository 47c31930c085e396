"""Making an answer fit: long texts and lists are cut, small values stay whole."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import orjson

from cks_mcp.plain import dump_json, scrub

_MARK = {"truncated": True}
_LEAST_BYTES = 4  # the longest of null, "", [] and {}

Size = Callable[[Any], int]


def trimmed(structured: dict[str, Any], budget: int) -> dict[str, Any]:
    """The same answer within `budget` bytes, with `truncated` where anything was cut.

    Of an object every key stays while there is room for keys; of a list the first items stay. What is shorter than
    its fair share stays whole, so a code or an id survives beside a text that does not fit.
    """
    if len(dump_json(structured)) <= budget:
        return structured
    # every container is new after scrubbing, so cutting changes nobody's value
    copy = scrub(structured)
    size = _measure(copy)
    return {**_cut_object(copy, budget - size(_MARK), size), **_MARK}


def _measure(whole: Any) -> Size:
    """How long a part is inside this whole: one integer beyond 64 bits has all of it written in the longer way."""
    try:
        orjson.dumps(whole)
    except TypeError:
        return lambda part: len(json.dumps(part, ensure_ascii=True, separators=(",", ":")))
    return lambda part: len(orjson.dumps(part))


def _cut(value: Any, budget: int, size: Size) -> Any:
    if size(value) <= budget:
        return value
    match value:
        case str():
            return _cut_text(value, budget, size)
        case list():
            return _cut_list(value, budget, size)
        case dict():
            return _cut_object(value, budget, size)
        case _:
            return None


def _cut_text(text: str, budget: int, size: Size) -> str:
    fits = bisect_right(range(1, len(text)), budget, key=lambda length: size(text[:length] + "…"))
    return text[:fits] + "…" if fits else ""


def _cut_list(items: list[Any], budget: int, size: Size) -> list[Any]:
    kept: list[Any] = []
    room = budget - 2
    for item in items:
        room -= size(item) + 1
        if room < 0:
            break
        kept.append(item)
    if not kept and budget >= 2 + _LEAST_BYTES:
        kept.append(_cut(items[0], budget - 2, size))
    return kept


def _cut_object(entries: dict[str, Any], budget: int, size: Size) -> dict[str, Any]:
    kept: list[str] = []
    room = budget - 2
    for key in entries:
        around = size(key) + 2
        if around + _LEAST_BYTES * (len(kept) + 1) > room:
            break
        room -= around
        kept.append(key)
    cut: dict[str, Any] = {}
    sizes = {key: size(entries[key]) for key in kept}
    for waiting, key in zip(range(len(kept), 0, -1), sorted(kept, key=sizes.__getitem__), strict=True):
        cut[key] = _cut(entries[key], room // waiting, size)
        room -= size(cut[key])
    return {key: cut[key] for key in kept}
