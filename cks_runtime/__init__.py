"""The knowledge runtime: versioned graphs, merges, conflicts, events. What is named here is public."""

from __future__ import annotations

from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.bus import EventBus
from cks_runtime.flow.inbox import ConflictInbox
from cks_runtime.model.diff import graph_diff as diff
from cks_runtime.model.errors import CksError
from cks_runtime.model.events import (
    ConflictClosed,
    CRDTForkDetected,
    Event,
    GossipConflictDetected,
    HeadMoved,
    InferenceConflictDetected,
    SessionCreated,
    TemporalConflictDetected,
    VerificationExpired,
)
from cks_runtime.model.merge import merge
from cks_runtime.runtime import Runtime

__all__ = [
    "CRDTForkDetected",
    "CksError",
    "ConflictClosed",
    "ConflictInbox",
    "Event",
    "EventBus",
    "GossipConflictDetected",
    "HeadMoved",
    "InferenceConflictDetected",
    "Runtime",
    "RuntimeConfig",
    "SessionCreated",
    "TemporalConflictDetected",
    "VerificationExpired",
    "diff",
    "merge",
]
