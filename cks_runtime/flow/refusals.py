"""Why a write is refused: the checks and errors that the writes of the flow have in common."""

from __future__ import annotations

from collections.abc import Sequence

from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.errors import (
    DamagedBlob,
    HeadMoved,
    InvalidKnowledge,
    InvalidParameter,
    SessionClosed,
    SessionNotFound,
)
from cks_runtime.store.sessions import SessionRow


def check_text(**arguments: str) -> None:
    """Raises InvalidParameter for text that cannot be stored: half a surrogate pair."""
    for argument, text in arguments.items():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidParameter(
                f"{argument} {text[:80]!r} is not Unicode text.",
                "Leave out the lone surrogate.",
                argument=argument,
            ) from None


def check_movable(row: SessionRow, expected_head: str | None) -> None:
    """Raises HeadMoved when the head is not the expected one, DamagedBlob when its version is gone."""
    check_expected(row, expected_head)
    if row.generation < 0:
        raise DamagedBlob(
            f"The head {row.head.hex()} of session {row.session_id!r} is missing from the database.",
            "Run `cks-mcp check`; restore the file from a copy or another replica.",
        )


def check_expected(row: SessionRow, expected_head: str | None) -> None:
    """Raises HeadMoved when the head is not the expected one (64 hex digits, or a prefix of 8 or more)."""
    if expected_head is None:
        return
    wanted = expected_head.lower()
    if not 8 <= len(wanted) <= 64 or any(digit not in "0123456789abcdef" for digit in wanted):
        raise InvalidParameter(
            f"expected_head is {expected_head[:80]!r}, not a version id.",
            "Give 8 to 64 hex digits of the version's id.",
            argument="expected_head",
        )
    if not row.head.hex().startswith(wanted):
        raise HeadMoved(
            f"The head of session {row.session_id!r} is {row.head.hex()}, not {expected_head}.",
            "Read the session again, then retry with its current head.",
            current_head=row.head.hex(),
        )


def raise_errors(found: Sequence[Diagnostic]) -> None:
    """Raises InvalidKnowledge when there are ERRORs among the diagnostics."""
    errors = [diagnostic for diagnostic in found if diagnostic.severity == "ERROR"]
    if not errors:
        return
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    raise InvalidKnowledge(
        f"{errors[0].message}{more}",
        "Nothing was changed. Fix what the diagnostics name and send the whole call again.",
        [error.as_json() for error in errors[:100]],
    )


def not_found(session_id: str) -> SessionNotFound:
    """The error for a session that does not exist."""
    return SessionNotFound(
        f"There is no session {session_id!r}.",
        "Use list_sessions, or evolve_knowledge with create=true to make it.",
    )


def closed_error(session_id: str) -> SessionClosed:
    """The error for an edit of a closed session."""
    return SessionClosed(
        f"Session {session_id!r} is closed.", "Reopen it with close_session reopen=true, or branch from it."
    )
