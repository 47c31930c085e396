"""The error tree: one class for each thing a caller can do about a failure.

Codes are those of the tool contract; `message` says what is wrong with which value, `hint` what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar


class CksError(Exception):
    """Base of every error this package raises on purpose; `details` is JSON."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, hint: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, object] = details

    def as_json(self) -> dict[str, object]:
        """The error as a tool answers it: `{code, message, hint, details}`."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "details": self.details}


class InvalidParameter(CksError):
    """An argument is missing, unknown, of the wrong type or out of range: fix the call."""

    code = "invalid_parameter"


class InvalidKnowledge(CksError):
    """The knowledge itself breaks a rule: fix what the diagnostics name."""

    code = "invalid_knowledge"

    def __init__(
        self,
        message: str,
        hint: str = "",
        diagnostics: Sequence[Mapping[str, object]] = (),
        **details: object,
    ) -> None:
        super().__init__(message, hint, diagnostics=list(diagnostics), **details)


class SessionNotFound(CksError):
    """No session has this id: list the sessions or create it."""

    code = "session_not_found"


class SessionClosed(CksError):
    """The session takes no edits: reopen it or branch from it."""

    code = "session_closed"


class VersionNotFound(CksError):
    """No version has this id (or a prefix is not unique)."""

    code = "version_not_found"


class ObjectNotFound(CksError):
    """The session's graph has no object of this id."""

    code = "object_not_found"


class DocumentNotFound(CksError):
    """No document stands at this path."""

    code = "document_not_found"


class HeadMoved(CksError):
    """The head is not what the caller expected: read again and retry; carries `current_head`."""

    code = "head_moved"


class StaleClaim(CksError):
    """The claim on a task is no longer the caller's: drop the result."""

    code = "stale_claim"


class TaskNotFound(CksError):
    """No task has this id."""

    code = "task_not_found"


class UnsafeUrl(CksError):
    """The URL leads to an address that must not be fetched."""

    code = "unsafe_url"


class FetchFailed(CksError):
    """The source did not answer with success."""

    code = "fetch_failed"


class LlmUnavailable(CksError):
    """No language model can be reached: set one up or decide by hand."""

    code = "llm_unavailable"


class LlmAnswerRefused(CksError):
    """The language model's answer left the offered choices: decide by hand."""

    code = "llm_answer_refused"


class NotSupported(CksError):
    """The store or build cannot do this."""

    code = "not_supported"


class TooLarge(CksError):
    """A size limit is exceeded: split the request or raise the setting that is named."""

    code = "too_large"


class Unauthorized(CksError):
    """The caller may not do this."""

    code = "unauthorized"


class InternalError(CksError):
    """A fault of ours; `details.error_id` stands in the log."""


class DamagedBlob(CksError):
    """A stored value does not match its hash: restore it from a replica or a copy; other values stay usable."""


class StoreFull(CksError):
    """The database cannot grow: free some space; the next write then works."""


class StoreBusy(CksError):
    """Other writers held the database for too long: try again."""


class StoreUnusable(CksError):
    """The database cannot be used at all, so the program must not start with it."""
