"""Canonical JSON (RFC 8785) and content ids: the one spelling of a value that is hashed."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Union

import orjson

from cks_runtime.model import numbers
from cks_runtime.model.diagnostics import quoted
from cks_runtime.model.numbers import NumberRefused

Hash = bytes
Json = Union[None, bool, int, float, str, list["Json"], dict[str, "Json"]]  # noqa: UP007 - recursive

_DEPTH_WRITTEN_MAX: Final = 254  # orjson's own limit, so that both ways of writing refuse alike
_TOO_DEEP: Final = "nested too deep"
_FAST: Final = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
)
_DIGITS_AS_ZERO: Final = bytes(ord("0") if chr(byte) in "123456789" else byte for byte in range(256))
_DOUBLE_OF_ORJSON: Final = re.compile(rb"(?:^|[:,\[])-?[0-9]+(?:\.0(?![0-9])|(?:\.[0-9]+)?e)")
_FROM_E000_TO_FFFF: Final = re.compile(rb"[\xee\xef]")
_ABOVE_FFFF: Final = re.compile(rb"[\xf0-\xf4]")


class NotCanonical(ValueError):
    """The value has no canonical form: `where` is the place, `reason` says why and what is allowed."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason


class _Refused(Exception):
    """A refusal on its way up; each container adds its key, so a good value pays nothing for the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.keys: list[str | int] = []

    def at(self, where: str, depth_max: int) -> NotCanonical:
        """The refusal with its place; of a path too long to read the middle is left out."""
        keys = self.keys[::-1]
        steps = [_step(key) for key in keys]
        if len(steps) > 12:
            steps[6:-6] = ["…"]
        deep = f"nested deeper than {depth_max} levels"
        return NotCanonical(where + "".join(steps), deep if self.reason == _TOO_DEEP else self.reason)


def _step(key: str | int) -> str:
    if isinstance(key, str) and key.isidentifier() and len(key) <= 60:
        return f".{key}"
    return f"[{quoted(key)}]"


class _Unreadable:
    """Stands where the parser met what it must refuse, until `normalize` gets there and knows the place."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


# ---- checked values


def normalize(value: object, where: str = "$", depth_max: int = 100) -> Json:
    """`value` in its one spelling, in fresh containers; everything the format refuses is refused.

    Whole doubles below 2**53 become `int` and -0.0 becomes 0; larger integers become `float` when RFC 8785
    prints that double with the same decimal value. Tuples count as lists. `value` itself, if a container, is
    level 1 of `depth_max`. Raises NotCanonical with the place, written as a path that starts with `where`.
    """
    try:
        return _normal(value, depth_max)
    except _Refused as refused:
        raise refused.at(where, depth_max) from None


def _normal(value: object, levels: int) -> Json:
    known = _NORMAL.get(type(value))
    if known is not None:
        return known(value, levels)
    if isinstance(value, _Unreadable):
        raise _Refused(value.reason)
    for kind, handler in _NORMAL_OF_SUBCLASS:
        if isinstance(value, kind):
            return handler(value, levels)
    raise _Refused(f"{quoted(value)} is not JSON")


def _same(value: Any, levels: int) -> Json:
    return value  # type: ignore[no-any-return]


def _normal_text(value: str, levels: int) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = f"U+{ord(value[error.start]):04X}"
            raise _Refused(
                f"{quoted(value)} has the lone surrogate {code}; it must be valid Unicode"
            ) from None
    return value if type(value) is str else str.__str__(value)


def _normal_number(value: int | float, levels: int) -> int | float:
    try:
        if isinstance(value, float):
            return numbers.normal_float(value)
        return numbers.normal_int(operator.index(value))
    except NumberRefused as refused:
        raise _Refused(str(refused)) from None


def _normal_list(value: Sequence[object], levels: int) -> list[Json]:
    if levels < 1:
        raise _Refused(_TOO_DEEP)
    out: list[Json] = []
    try:
        for item in value:
            out.append(_normal(item, levels - 1))
    except _Refused as refused:
        refused.keys.append(len(out))
        raise
    return out


def _normal_object(value: Mapping[object, object], levels: int) -> dict[str, Json]:
    if levels < 1:
        raise _Refused(_TOO_DEEP)
    out: dict[str, Json] = {}
    for key, item in value.items():
        name = _normal_key(key)
        try:
            out[name] = _normal(item, levels - 1)
        except _Refused as refused:
            refused.keys.append(name)
            raise
    return out


def _normal_key(key: object) -> str:
    if type(key) is str and key.isascii():
        return key
    if isinstance(key, str):
        return _normal_text(key, 0)
    raise _Refused(f"the key {quoted(key)} is not a string; keys must be strings")


_Handler = Callable[[Any, int], Json]
_NORMAL: Final[Mapping[type, _Handler]] = {
    str: _normal_text,
    int: _normal_number,
    float: _normal_number,
    bool: _same,
    type(None): _same,
    dict: _normal_object,
    list: _normal_list,
    tuple: _normal_list,
}
_NORMAL_OF_SUBCLASS: Final[Sequence[tuple[type, _Handler]]] = (
    (str, _normal_text),
    (int, _normal_number),
    (float, _normal_number),
    (Mapping, _normal_object),
    (list, _normal_list),
    (tuple, _normal_list),
)


def parse_exact(text: str | bytes, depth_max: int = 128) -> Json:
    """The value of a JSON text, normalized.

    Raises NotCanonical for bad UTF-8 or JSON, a key that is given twice, a number that no double holds as it
    is written, NaN and infinities, lone surrogates, and nesting deeper than `depth_max`.
    """
    try:
        value = json.loads(
            text.decode() if isinstance(text, bytes) else text,
            parse_int=_parsed_number,
            parse_float=_parsed_number,
            parse_constant=lambda name: _Unreadable(f"{name} is not a JSON number; it must be finite"),
            object_pairs_hook=_distinct,
        )
    except UnicodeDecodeError as error:
        raise NotCanonical("$", f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise NotCanonical("$", f"not JSON: {error}") from None
    except RecursionError:
        raise NotCanonical("$", f"nested deeper than {depth_max} levels") from None
    return normalize(value, depth_max=depth_max)


def _parsed_number(text: str) -> int | float | _Unreadable:
    try:
        return numbers.written_number(text)
    except NumberRefused as refused:
        return _Unreadable(str(refused))


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object] | _Unreadable:
    out: dict[str, object] = {}
    for key, value in pairs:
        if key in out:
            return _Unreadable(f"the key {quoted(key)} is given twice")
        out[key] = value
    return out


# ---- bytes


def number_text(x: int | float) -> str:
    """The number as RFC 8785 prints it, which is ECMAScript's Number::toString.

    Raises NotCanonical for NaN, infinities, integers that are not exactly a double, and booleans.
    """
    if isinstance(x, bool):
        raise NotCanonical("$", f"{quoted(x)} is not a number")
    try:
        return numbers.double_text(_normal_number(x, 0))
    except _Refused as refused:
        raise refused.at("$", 0) from None


def canonical(value: Json) -> bytes:
    """RFC 8785 bytes of a value made of JSON's types.

    Raises NotCanonical for what has no canonical form: NaN, infinities, lone surrogates, inexact integers.
    """
    try:
        data = orjson.dumps(value, option=_FAST)
    except (TypeError, ValueError):
        return canonical_slowly(value)
    return data if _as_the_rfc(data, value) else canonical_slowly(value)


def _as_the_rfc(data: bytes, value: Json) -> bool:
    """Whether orjson's bytes are RFC 8785's; a wrong "no" only costs time.

    orjson differs in whole doubles (1.0), in exponents (1e16, 1e-6), prints NaN as null, and sorts keys by
    code point, which is another order than UTF-16's only where U+E000..U+FFFF meets a character above them.
    """
    perhaps_double = data.find(b".0") >= 0 or data.translate(_DIGITS_AS_ZERO).find(b"0e") >= 0
    if perhaps_double and _DOUBLE_OF_ORJSON.search(data):
        return False
    if not data.isascii() and _ABOVE_FFFF.search(data) and _FROM_E000_TO_FFFF.search(data):
        return False
    return data.find(b"null") < 0 or bool(orjson.loads(data) == value)


def canonical_slowly(value: Json) -> bytes:
    """`canonical` without its short cut: RFC 8785 written out."""
    out: list[bytes] = []
    try:
        _write(value, out, _DEPTH_WRITTEN_MAX)
    except _Refused as refused:
        raise refused.at("$", _DEPTH_WRITTEN_MAX) from None
    return b"".join(out)


def _write(value: object, out: list[bytes], levels: int) -> None:
    match value:
        case dict():
            _write_object(value, out, levels)
        case list() | tuple():
            _write_list(value, out, levels)
        case None | bool() | str():
            out.append(orjson.dumps(_normal(value, levels)))
        case int() | float():
            out.append(numbers.double_text(_normal_number(value, levels)).encode())
        case _:
            raise _Refused(f"{quoted(value)} is not JSON")


def _write_list(value: Sequence[object], out: list[bytes], levels: int) -> None:
    if levels < 1:
        raise _Refused(_TOO_DEEP)
    before = b"["
    for index, item in enumerate(value):
        out.append(before)
        before = b","
        try:
            _write(item, out, levels - 1)
        except _Refused as refused:
            refused.keys.append(index)
            raise
    out.append(b"]" if value else b"[]")


def _write_object(value: Mapping[object, object], out: list[bytes], levels: int) -> None:
    if levels < 1:
        raise _Refused(_TOO_DEEP)
    before = b"{"
    for name in sorted(map(_normal_key, value), key=_utf16):
        out.append(before + orjson.dumps(name) + b":")
        before = b","
        try:
            _write(value[name], out, levels - 1)
        except _Refused as refused:
            refused.keys.append(name)
            raise
    out.append(b"}" if value else b"{}")


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be")


def digest(data: bytes) -> Hash:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def content_id(value: Json) -> Hash:
    """The name of a value: SHA-256 of its canonical bytes."""
    return digest(canonical(value))
