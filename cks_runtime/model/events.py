"""The facts the runtime tells: one pydantic model a kind, one JSON form for journal, bus, replay and tests."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

REGISTRY: dict[str, type[Event]] = {}


class Event(BaseModel):
    """Base of every event. `seq` is the journal's number (0 until it is stored); `at_ms` its time.

    A further kind subclasses this with a `kind` literal of its own; defining it registers it for replay.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    KIND: ClassVar[str] = ""
    kind: str
    seq: int = 0
    at_ms: int = 0
    session_id: str = ""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        default = cls.model_fields["kind"].default if "kind" in cls.__annotations__ else None
        if isinstance(default, str) and default:
            cls.KIND = default
            REGISTRY[default] = cls


class SessionCreated(Event):
    """A session exists from now on."""

    kind: Literal["SessionCreated"] = "SessionCreated"
    title: str = ""
    version_id: str


class HeadMoved(Event):
    """A session's head went from `previous_id` to `version_id` (hex); `origin` names the process."""

    kind: Literal["HeadMoved"] = "HeadMoved"
    version_id: str
    previous_id: str
    author: str = ""
    closed: bool = False
    changed: int = 0
    origin: str = ""


class ConflictRaised(Event):
    """Common part of every raised conflict: which record, and for the how-manieth time."""

    kind: str = ""
    record_id: str
    occurrence: int = 1
    version_id: str = ""


class GossipConflictDetected(ConflictRaised):
    """Two replicas' heads of one session do not merge; `conflicts` are object ids."""

    kind: Literal["GossipConflictDetected"] = "GossipConflictDetected"
    source_replica_id: str = ""
    source_session_id: str = ""
    base_version_id: str = ""
    conflicts: list[str] = Field(default_factory=list)


class InferenceConflictDetected(ConflictRaised):
    """Active steps disagree or cite a replaced premise; `diagnostics` in their JSON form."""

    kind: Literal["InferenceConflictDetected"] = "InferenceConflictDetected"
    diagnostics: list[dict[str, Any]] = Field(default_factory=list)


class VerificationExpired(ConflictRaised):
    """A verification record is older than the time it is trusted for."""

    kind: Literal["VerificationExpired"] = "VerificationExpired"
    object_id: str
    diagnostics: list[dict[str, Any]] = Field(default_factory=list)


class TemporalConflictDetected(ConflictRaised):
    """An object is past its `valid_until`."""

    kind: Literal["TemporalConflictDetected"] = "TemporalConflictDetected"
    object_id: str
    diagnostics: list[dict[str, Any]] = Field(default_factory=list)


class CRDTForkDetected(ConflictRaised):
    """A pointer has concurrent values."""

    kind: Literal["CRDTForkDetected"] = "CRDTForkDetected"
    key: str


class ConflictClosed(Event):
    """A record closed; `how` says why (resolved, cause_gone, replaced, acknowledged)."""

    kind: Literal["ConflictClosed"] = "ConflictClosed"
    record_id: str
    conflict_kind: str
    occurrence: int = 1
    how: str


class UnknownEvent(Event):
    """An event of a kind this build does not know, or whose row is damaged; `body` is what was stored."""

    kind: str = ""
    body: dict[str, Any] = Field(default_factory=dict)


def event_to_json(event: Event) -> str:
    """Stored form: everything but `seq`, which is the row's own number."""
    return event.model_dump_json(exclude={"seq"})


def event_from_json(kind: str, body: str, seq: int) -> Event:
    """The event of a stored row; what cannot be read as its kind comes back as `UnknownEvent`, and never raises."""
    known = REGISTRY.get(kind, UnknownEvent)
    try:
        event = known.model_validate_json(body)
        if known is not UnknownEvent:
            return event.model_copy(update={"seq": seq})
        return event.model_copy(update={"kind": kind, "seq": seq, "body": json.loads(body)})
    except ValueError:
        return UnknownEvent(kind=kind, seq=seq, body={"unreadable": body})
