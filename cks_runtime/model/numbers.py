"""Numbers of the data format: which are allowed, and how RFC 8785 prints them."""

from __future__ import annotations

import math
import re
from typing import Final

from cks_runtime.model.diagnostics import quoted

INTEGER_LIMIT: Final = 2**53
"""Whole numbers below this (in magnitude) are `int` inside; all other numbers are `float`."""

_WRITTEN: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([-+]?[0-9]+))?")
_DIGITS_MAX: Final = 17  # no double needs more to be told apart
_NOT_EXACT: Final = "is not exactly a double; write it as a string"
_OUT_OF_RANGE: Final = "is outside the range of a double; write it as a string"


class NumberRefused(ValueError):
    """The number cannot be kept as it is; the text says which number and why."""


def normal_float(x: float) -> int | float:
    """The one spelling of a double: `int` when whole and below 2**53. NumberRefused when it is not finite."""
    if x.is_integer() and -INTEGER_LIMIT < x < INTEGER_LIMIT:
        return int(x)
    if math.isfinite(x):
        return float(x)
    raise NumberRefused(f"{x} is not a JSON number; only finite numbers are allowed")


def normal_int(x: int) -> int | float:
    """The one spelling of an integer: a `float` from 2**53 on.

    NumberRefused when RFC 8785 prints that double with another decimal value.
    """
    if -INTEGER_LIMIT < x < INTEGER_LIMIT:
        return int(x)
    try:
        double = float(x)
    except OverflowError:
        raise NumberRefused(f"{quoted(x)} {_OUT_OF_RANGE}") from None
    sign, digits, exponent = _decimal(repr(double))
    if int(sign + digits) * 10**exponent != x:
        raise NumberRefused(f"{quoted(x)} {_NOT_EXACT}")
    return double


def written_number(text: str) -> int | float:
    """The number that a JSON text spells. NumberRefused when its double has another decimal value."""
    if len(text) < 16 and text.isascii() and text.removeprefix("-").isdigit():
        return int(text)
    sign, digits, exponent = _decimal(text)
    if not digits:
        return 0
    if len(digits) + exponent > 309:
        raise NumberRefused(f"the number {quoted(text)} {_OUT_OF_RANGE}")
    if len(digits) > _DIGITS_MAX:
        raise NumberRefused(f"the number {quoted(text)} {_NOT_EXACT}")
    double = float(f"{sign}{digits}e{max(exponent, -400)}")
    if math.isinf(double):
        raise NumberRefused(f"the number {quoted(text)} {_OUT_OF_RANGE}")
    if _decimal(repr(double)) != (sign, digits, exponent):
        raise NumberRefused(f"the number {quoted(text)} {_NOT_EXACT}")
    return normal_float(double)


def double_text(x: int | float) -> str:
    """ECMA-262 Number::toString of a normal number: the shortest digits, found by `repr`, laid out anew."""
    if isinstance(x, int):
        return str(x)
    sign, digits, exponent = _decimal(repr(x))
    count = len(digits)
    point = count + exponent
    if count <= point <= 21:
        return f"{sign}{digits}{'0' * exponent}"
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if count > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _decimal(text: str) -> tuple[str, str, int]:
    """Sign, significant digits and power of ten of a written number; zero has no sign and no digits."""
    match = _WRITTEN.fullmatch(text)
    if match is None:
        raise NumberRefused(f"{quoted(text)} is not a number")
    sign, whole, fraction, power = match.group(1), match.group(2), match.group(3) or "", match.group(4) or "0"
    all_digits = (whole + fraction).lstrip("0")
    digits = all_digits.rstrip("0")
    if not digits:
        return "", "", 0
    magnitude = power.lstrip("-+0") or "0"
    if len(magnitude) > 18:
        raise NumberRefused(f"the number {quoted(text)} {_OUT_OF_RANGE}")
    shift = -int(magnitude) if power.startswith("-") else int(magnitude)
    return sign, digits, shift - len(fraction) + len(all_digits) - len(digits)
