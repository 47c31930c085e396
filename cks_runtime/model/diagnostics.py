"""What is wrong with a piece of knowledge: diagnostics, their codes and their JSON form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from cks_runtime.model.canon import Json

Severity = Literal["INFO", "WARNING", "ERROR"]

DANGLING_REF: Final = "CKS-STRUCT-DANGLING-REF"
UNIQUE_IDENTITY: Final = "CKS-STRUCT-UNIQUE-IDENTITY"
FORMAT: Final = "CKS-STRUCT-FORMAT"
INFERENCE_INTEGRITY: Final = "CKS-EXT-INFERENCE-INTEGRITY"
CONFIDENCE_BOUNDS: Final = "CKS-EXT-CONFIDENCE-BOUNDS"
SUPERSESSION_CHAIN: Final = "CKS-EXT-SUPERSESSION-CHAIN"
CONFIDENCE_CONFLICT: Final = "CKS-EXT-INFERENCE-CONFIDENCE-CONFLICT"
STALE_PREMISE: Final = "CKS-EXT-STALE-PREMISE"
TEMPORAL_VALIDITY: Final = "CKS-EXT-TEMPORAL-VALIDITY"
PROVENANCE_EXPIRED: Final = "CKS-EXT-PROVENANCE-EXPIRED"
VERIFICATION_RECORD: Final = "CKS-EXT-VERIFICATION-RECORD"
UNVERIFIED_PROVENANCE: Final = "CKS-MCP-UNVERIFIED-PROVENANCE"
MUTUAL_EXCLUSION: Final = "CKS-EXT-MUTUAL-EXCLUSION"
FUNCTIONAL_RELATION: Final = "CKS-EXT-FUNCTIONAL-RELATION"

OBJECT_IDS_SHOWN_MAX: Final = 100
_RANK: Final[Mapping[str, int]] = {"ERROR": 0, "WARNING": 1, "INFO": 2}


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding. `location` is an object id or a place in the input; `extra` holds the fields of its code.

    Every ERROR about a graph has `object_ids`: the objects that take part in it, `location` first.
    """

    code: str
    severity: Severity
    message: str
    location: str
    extra: Mapping[str, Json] = field(default_factory=dict, hash=False)

    def as_json(self) -> dict[str, Json]:
        """Flat form `{code, severity, message, location, …}`; of `object_ids` only the first 100."""
        ids = self.extra.get("object_ids")
        shown: dict[str, Json] = {"object_ids": ids[:OBJECT_IDS_SHOWN_MAX]} if isinstance(ids, list) else {}
        return {
            **self.extra,
            **shown,
            "code": self.code,
            "severity": self.severity,
            "message": self.message,
            "location": self.location,
        }

    @property
    def sort_key(self) -> tuple[int, str, str, str]:
        """Worst first, then by place, code and text: the order every list of diagnostics has."""
        return (_RANK[self.severity], self.location, self.code, self.message)


def error(code: str, location: str, message: str, **extra: Json) -> Diagnostic:
    """A finding that blocks a commit."""
    return Diagnostic(code, "ERROR", message, location, extra)


def broken(code: str, location: str, message: str, *others: str) -> Diagnostic:
    """An ERROR of a graph that names the objects in it, `location` first."""
    ids: list[Json] = list(dict.fromkeys((location, *others)))
    return error(code, location, message, object_ids=ids)


def warning(code: str, location: str, message: str, **extra: Json) -> Diagnostic:
    """A finding that a caller should look at."""
    return Diagnostic(code, "WARNING", message, location, extra)


def in_order(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """The findings sorted by `sort_key`, equal ones once."""
    return sorted({d.sort_key: d for d in found}.values(), key=lambda d: d.sort_key)


def quoted(value: object, length_max: int = 80) -> str:
    """A value as a message shows it: its repr, cut so that hostile input cannot flood an answer."""
    match value:
        case str():
            text = repr(value[:length_max])
            return text if len(value) <= length_max else text[:-1] + "…" + text[-1]
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case int() if value.bit_length() <= 256:
            return repr(value)
        case int():
            return f"an integer of {value.bit_length()} bits"
        case dict() | list():
            return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
        case _:
            return f"a value of type {type(value).__name__}"


def quoted_ids(ids: Iterable[str], shown_max: int = 10) -> str:
    """Ids as a message lists them: the first few in order, then how many more there are."""
    known = list(ids)
    text = ", ".join(quoted(i) for i in known[:shown_max])
    return text if len(known) <= shown_max else f"{text} and {len(known) - shown_max} more"
