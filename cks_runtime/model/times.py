"""Times at the edges: RFC 3339 text to epoch milliseconds and back."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Final

from cks_runtime.model.diagnostics import quoted

_DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
MIN_MS: Final = (date.min.toordinal() - _EPOCH_ORDINAL) * _DAY_MS
"""0001-01-01T00:00:00Z."""
MAX_MS: Final = (date.max.toordinal() - _EPOCH_ORDINAL + 1) * _DAY_MS - 1
"""9999-12-31T23:59:59.999Z."""

_RFC3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([-+])([0-9]{2}):([0-9]{2}))?"
)


def parse_rfc3339(text: str) -> int:
    """Epoch milliseconds of an RFC 3339 date and time; digits finer than a millisecond are cut off.

    Without an offset it is UTC. A leap second (23:59:60 UTC) counts as the last millisecond before it ends.
    Raises ValueError that names the text: another form, a day or hour that does not exist, or a time
    outside 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999Z.
    """
    match = _RFC3339.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{quoted(text)} is not a time; write it like '2026-05-05T20:00:00Z' (RFC 3339)")
    year, month, day, hour, minute, second = (int(part) for part in match.group(1, 2, 3, 4, 5, 6))
    fraction, sign, offset_hour, offset_minute = match.group(7, 8, 9, 10)
    offset = int(offset_hour or 0) * 60 + int(offset_minute or 0)
    if hour > 23 or minute > 59 or second > 60 or int(offset_hour or 0) > 23 or int(offset_minute or 0) > 59:
        raise ValueError(f"{quoted(text)} is not a time: its hour, minute, second or offset does not exist")
    try:
        days = date(year, month, day).toordinal() - _EPOCH_ORDINAL
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a time: there is no such day (years 0001 to 9999)") from None
    minutes = days * 1440 + hour * 60 + minute - (-offset if sign == "-" else offset)
    if second == 60 and minutes % 1440 != 1439:
        raise ValueError(f"{quoted(text)} is not a time: a leap second can only be 23:59:60 UTC")
    within = 59_999 if second == 60 else second * 1000 + int((fraction or "")[:3].ljust(3, "0"))
    return _in_range(minutes * _MINUTE_MS + within, text)


def format_ms(ms: int) -> str:
    """'2026-05-05T20:00:00Z', with milliseconds where they are not zero. Raises ValueError out of range."""
    moment = _EPOCH + timedelta(milliseconds=_in_range(ms, ms))
    text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    return text + "Z"


def _in_range(ms: int, written: object) -> int:
    if not MIN_MS <= ms <= MAX_MS:
        raise ValueError(f"the time {quoted(written)} is outside the years 0001 to 9999")
    return ms
