"""Facts and proofs that age: what is past its date, and when each object falls due."""

from __future__ import annotations

from typing import Literal

from cks_runtime.model.canon import Json
from cks_runtime.model.diagnostics import (
    PROVENANCE_EXPIRED,
    TEMPORAL_VALIDITY,
    Diagnostic,
    quoted,
    warning,
)
from cks_runtime.model.knowledge import KObject
from cks_runtime.model.supersession import RECORD_TYPE, is_superseded
from cks_runtime.model.times import format_ms, parse_rfc3339

DueKind = Literal["temporal", "provenance"]


def valid_until_ms(obj: KObject) -> int | None:
    """When the object stops being valid (epoch ms); None without a `valid_until` or with null.

    Raises ValueError for one that is not an RFC 3339 time; the text says what is wrong.
    """
    value = obj.structure.get("valid_until")
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{quoted(value)} is not an RFC 3339 time")
    return parse_rfc3339(value)


def check_valid_until(obj: KObject) -> Diagnostic | None:
    """The ERROR of a malformed `valid_until`, archived or not."""
    try:
        valid_until_ms(obj)
    except ValueError:
        given = obj.structure.get("valid_until")
        message = (
            f"{quoted(obj.id)}: 'valid_until' must be an RFC 3339 time such as '2027-01-01T00:00:00Z', "
            f"is {quoted(given)}"
        )
        shown = given[:200] if isinstance(given, str) else quoted(given)
        extra: dict[str, Json] = {"valid_until": shown, "object_ids": [obj.id]}
        return Diagnostic(TEMPORAL_VALIDITY, "ERROR", message, obj.id, extra)
    return None


def temporal(obj: KObject, now_ms: int) -> Diagnostic | None:
    """A WARNING when the object's `valid_until` lies strictly before `now_ms` and it is not archived."""
    due = _temporal_due(obj)
    if due is None or due >= now_ms:
        return None
    message = (
        f"'{obj.id}' was valid until {format_ms(due)}: check it, then extend 'valid_until' or archive it."
    )
    return warning(TEMPORAL_VALIDITY, obj.id, message, valid_until=obj.structure["valid_until"])


def provenance(obj: KObject, now_ms: int, ttl_ms: int) -> Diagnostic | None:
    """A WARNING when the object is a VerificationRecord in force that was checked more than `ttl_ms` ago."""
    due = _provenance_due(obj)
    if due is None or due + ttl_ms >= now_ms:
        return None
    subject_id, url = obj.structure.get("subject_id"), obj.structure.get("url")
    message = (
        f"VerificationRecord '{obj.id}' of '{subject_id}' was checked at {format_ms(due)}, "
        f"more than {ttl_ms // 1000} s ago: check the source again."
    )
    return warning(
        PROVENANCE_EXPIRED,
        obj.id,
        message,
        record_id=obj.id,
        subject_id=subject_id,
        source_url=url,
        checked_at=obj.structure["checked_at"],
    )


def due(obj: KObject) -> list[tuple[DueKind, int]]:
    """When the object needs a look (epoch ms): its `valid_until`, and a record's `checked_at` (add the TTL).

    What is archived, superseded or malformed is never due.
    """
    found: list[tuple[DueKind, int]] = []
    if (at := _temporal_due(obj)) is not None:
        found.append(("temporal", at))
    if (at := _provenance_due(obj)) is not None:
        found.append(("provenance", at))
    return found


def _temporal_due(obj: KObject) -> int | None:
    if obj.structure.get("archived") is True:
        return None
    try:
        return valid_until_ms(obj)
    except ValueError:
        return None


def _provenance_due(obj: KObject) -> int | None:
    checked_at = obj.structure.get("checked_at")
    if obj.type != RECORD_TYPE or is_superseded(obj) or not isinstance(checked_at, str):
        return None
    try:
        return parse_rfc3339(checked_at)
    except ValueError:
        return None
