"""Canonical JSON (RFC 8785) and content ids: the one spelling of a value that is hashed."""

from __future__ import annotations

import hashlib
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Union

import orjson

Hash = bytes
Json = Union[None, bool, int, float, str, list["Json"], dict[str, "Json"]]  # noqa: UP007 - recursive

INTEGER_LIMIT: Final = 2**53
"""Integers below this (in magnitude) stay `int`; whole numbers from here on are doubles."""

_DEPTH_WRITTEN_MAX: Final = 200
_FAST: Final = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_SUBCLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
)
_DIGITS_AS_ZERO: Final = bytes(ord("0") if chr(byte) in "123456789" else byte for byte in range(256))
_RISKY_FLOAT: Final = re.compile(rb"(?:^|[:,\[])-?[0-9]+(?:\.0(?![0-9])|(?:\.[0-9]+)?e)")
_PLANE_0_TOP: Final = re.compile(rb"[\xee\xef]")
_PLANE_1_UP: Final = re.compile(rb"[\xf0-\xf4]")
_NUMBER: Final = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]+))?")


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


class _Unreadable:
    """Stands where the parser met what it must refuse, until `normalize` gets there and knows the place."""

    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


# ---- messages


def shown(value: object, limit: int = 60) -> str:
    """`value` as an error message shows it: one short line of valid Unicode, whatever the value is."""
    if isinstance(value, str):
        text = value if len(value) <= limit else value[:limit] + "…"
        return json.dumps(text.encode("utf-8", "backslashreplace").decode(), ensure_ascii=False)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return f"an object of {len(value)} key(s)"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} item(s)"
    return f"a value of type {type(value).__name__}"


def _path(where: str, keys: Sequence[str | int]) -> str:
    parts = [where]
    for key in keys if len(keys) <= 12 else [*keys[:6], *keys[-6:]]:
        if isinstance(key, int):
            parts.append(f"[{key}]")
        elif key.isidentifier() and len(key) <= 60:
            parts.append(f".{key}")
        else:
            parts.append(f"[{shown(key)}]")
    return "".join(parts)


# ---- numbers


def number_text(x: int | float) -> str:
    """The number as RFC 8785 prints it, which is ECMAScript's Number::toString.

    Raises NotCanonical for NaN, infinities and integers that a double does not hold exactly.
    """
    if isinstance(x, int) and not isinstance(x, bool) and -INTEGER_LIMIT < x < INTEGER_LIMIT:
        return str(int(x))
    try:
        return _double_text(_number(x))
    except _Refused as refused:
        raise NotCanonical("$", refused.reason) from None


def _double_text(x: int | float) -> str:
    """ECMA-262 Number::toString of a finite number; `repr` yields the same shortest digits, laid out anew."""
    if x == 0:
        return "0"
    sign, digits, exponent = _decimal(repr(x))
    count = len(digits)
    point = count + exponent
    if count <= point <= 21:
        return sign + digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _decimal(text: str) -> tuple[str, str, int]:
    """Sign, significant digits and power of ten of a written number; zero is `("", "", 0)`."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise _Refused(f"{shown(text)} is not a number")
    whole, fraction, power = match.group(1), match.group(2) or "", match.group(3) or "0"
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return "", "", 0
    stripped = digits.rstrip("0")
    if len(power.lstrip("+-0")) > 18:
        raise _Refused(f"the number {shown(text)} is outside the range of a double")
    exponent = int(power) - len(fraction) + len(digits) - len(stripped)
    return ("-" if text.startswith("-") else ""), stripped, exponent


def _number(x: int | float) -> int | float:
    """The one spelling of a number inside: whole ones below 2**53 are `int`, all others `float`."""
    if isinstance(x, bool):
        raise _Refused(f"{shown(x)} is not a number")
    if isinstance(x, float):
        if x != x or x in (float("inf"), float("-inf")):
            raise _Refused(f"{x} is not a JSON number; only finite numbers are allowed")
        return int(x) if x.is_integer() and -INTEGER_LIMIT < x < INTEGER_LIMIT else float(x)
    if -INTEGER_LIMIT < x < INTEGER_LIMIT:
        return int(x)
    try:
        double = float(x)
    except OverflowError:
        raise _Refused(f"{shown(x)} is outside the range of a double") from None
    _, digits, exponent = _decimal(repr(double))
    if int(digits) * 10**exponent != abs(x):
        raise _Refused(f"{shown(x)} is not exactly a double; write it as a string")
    return double


def _written_number(text: str) -> int | float | _Unreadable:
    """The double that `text` spells, unless RFC 8785 would print that double as another decimal value."""
    try:
        sign, digits, exponent = _decimal(text)
        if not digits:
            return 0
        if not -400 < len(digits) + exponent < 400:
            raise _Refused(f"the number {shown(text)} is outside the range of a double")
        double = float(f"{sign}{digits}e{exponent}") if len(digits) <= 17 else 0.0
        if (
            double == 0
            or double in (float("inf"), float("-inf"))
            or _decimal(repr(double)) != (sign, digits, exponent)
        ):
            raise _Refused(f"the number {shown(text)} is not exactly a double; write it as a string")
        return _number(double)
    except _Refused as refused:
        return _Unreadable(refused.reason)


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
        raise NotCanonical(_path(where, refused.keys[::-1]), refused.reason) from None


def _normal(value: object, levels: int) -> Json:
    known = _NORMAL.get(type(value))
    if known is not None:
        return known(value, levels)
    if isinstance(value, _Unreadable):
        raise _Refused(value.reason)
    for kind, handler in _NORMAL_BASES:
        if isinstance(value, kind):
            return handler(value, levels)
    raise _Refused(f"{shown(value)} is not JSON")


def _normal_text(value: str, levels: int) -> str:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            code = ord(value[error.start])
            raise _Refused(
                f"{shown(value)} has the lone surrogate U+{code:04X}; only valid Unicode is allowed"
            ) from None
    return value if type(value) is str else str.__str__(value)


def _normal_list(value: Sequence[object], levels: int) -> list[Json]:
    if levels < 1:
        raise _Refused("nested deeper than allowed")
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
        raise _Refused("nested deeper than allowed")
    out: dict[str, Json] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise _Refused(f"the key {shown(key)} is not a string; only strings are allowed as keys")
        name = _normal_text(key, levels)
        try:
            out[name] = _normal(item, levels - 1)
        except _Refused as refused:
            refused.keys.append(name)
            raise
    return out


_Handler = Callable[..., Json]
_NORMAL: Final[dict[type, _Handler]] = {
    str: _normal_text,
    int: lambda value, levels: _number(value),
    float: lambda value, levels: _number(value),
    bool: lambda value, levels: value,
    type(None): lambda value, levels: value,
    dict: _normal_object,
    list: _normal_list,
    tuple: _normal_list,
}
_NORMAL_BASES: Final[tuple[tuple[type, _Handler], ...]] = (
    (str, _normal_text),
    (int, lambda value, levels: _number(operator.index(value))),
    (float, lambda value, levels: _number(float.__float__(value))),
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
            text.decode("utf-8") if isinstance(text, bytes) else text,
            parse_int=_written_number,
            parse_float=_written_number,
            parse_constant=lambda name: _Unreadable(
                f"{name} is not a JSON number; only finite numbers are allowed"
            ),
            object_pairs_hook=_distinct,
        )
    except UnicodeDecodeError as error:
        raise NotCanonical("$", f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise NotCanonical("$", f"not JSON: {error}") from None
    except RecursionError:
        raise NotCanonical("$", f"nested deeper than {depth_max} levels") from None
    return normalize(value, depth_max=depth_max)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object] | _Unreadable:
    out = dict(pairs)
    if len(out) == len(pairs):
        return out
    seen: set[str] = set()
    twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return _Unreadable(f"the key {shown(twice)} is given twice")


# ---- bytes


def canonical(value: Json) -> bytes:
    """RFC 8785 bytes of a value made of JSON's types (as `normalize` returns it).

    Raises NotCanonical for what has no canonical form: NaN, infinities, lone surrogates, inexact integers.
    """
    try:
        data = orjson.dumps(value, option=_FAST)
    except (TypeError, ValueError):
        return canonical_slowly(value)
    return data if _as_the_rfc(data, value) else canonical_slowly(value)


def _as_the_rfc(data: bytes, value: Json) -> bool:
    """Whether orjson's bytes are RFC 8785's, where a wrong "no" costs time only.

    orjson differs in whole doubles (1.0), in exponents (1e16, 1e-6), prints NaN as null, and sorts keys by
    code point, which is another order than UTF-16's only where U+E000..U+FFFF meets a character above them.
    """
    if (b".0" in data or b"0e" in data.translate(_DIGITS_AS_ZERO)) and _RISKY_FLOAT.search(data):
        return False
    if not data.isascii() and _PLANE_1_UP.search(data) and _PLANE_0_TOP.search(data):
        return False
    return b"null" not in data or bool(orjson.loads(data) == value)


def canonical_slowly(value: Json) -> bytes:
    """`canonical` without its short cut: RFC 8785 written out."""
    out: list[bytes] = []
    try:
        _write(value, out, _DEPTH_WRITTEN_MAX)
    except _Refused as refused:
        raise NotCanonical(_path("$", refused.keys[::-1]), refused.reason) from None
    return b"".join(out)


def _write(value: object, out: list[bytes], levels: int) -> None:
    if levels < 0:
        raise _Refused("nested deeper than allowed")
    if value is None or isinstance(value, bool):
        out.append(shown(value).encode())
    elif isinstance(value, str):
        out.append(orjson.dumps(_normal_text(value, levels)))
    elif isinstance(value, int | float):
        out.append(_double_text(_number(value)).encode())
    elif isinstance(value, dict):
        _write_object(value, out, levels)
    elif isinstance(value, list | tuple):
        _write_list(value, out, levels)
    else:
        raise _Refused(f"{shown(value)} is not JSON")


def _write_list(value: Sequence[object], out: list[bytes], levels: int) -> None:
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
    names: list[str] = []
    for key in value:
        if not isinstance(key, str):
            raise _Refused(f"the key {shown(key)} is not a string; only strings are allowed as keys")
        names.append(_normal_text(key, levels))
    before = b"{"
    for name in sorted(names, key=lambda text: text.encode("utf-16-be")):
        out.append(before + orjson.dumps(name) + b":")
        before = b","
        try:
            _write(value[name], out, levels - 1)
        except _Refused as refused:
            refused.keys.append(name)
            raise
    out.append(b"}" if value else b"{}")


def digest(data: bytes) -> Hash:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def content_id(value: Json) -> Hash:
    """The name of a value: SHA-256 of its canonical bytes."""
    return digest(canonical(value))
