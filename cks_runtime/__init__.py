"""The knowledge runtime: versioned graphs, merges, conflicts, events. What is named here is public.

`errors` is the error tree, a module of its own because `HeadMoved` is an event here and an error there.
"""

from __future__ import annotations

from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.bus import EventBus, Subscription
from cks_runtime.flow.conflicts import ConflictKind
from cks_runtime.flow.inbox import ConflictInbox
from cks_runtime.model import errors
from cks_runtime.model.diff import graph_diff as diff
from cks_runtime.model.document_events import DocumentPublished
from cks_runtime.model.errors import (
    CksError,
    DamagedBlob,
    DocumentNotFound,
    InternalError,
    InvalidKnowledge,
    InvalidParameter,
    NotSupported,
    ObjectNotFound,
    SessionClosed,
    SessionNotFound,
    StaleClaim,
    StoreBusy,
    StoreFull,
    StoreUnusable,
    TaskNotFound,
    TooLarge,
    VersionNotFound,
)
from cks_runtime.model.events import (
    ConflictClosed,
    ConflictRaised,
    CRDTForkDetected,
    Event,
    GossipConflictDetected,
    HeadMoved,
    InferenceConflictDetected,
    SessionCreated,
    TemporalConflictDetected,
    VerificationExpired,
)
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.knowledge import KObject, Limits, make_object, parse_knowledge
from cks_runtime.model.merge import Conflicted, MergeConflict, Merged, merge
from cks_runtime.model.records import Keyring, record_operations
from cks_runtime.runtime import Runtime

__all__ = [
    "EMPTY_GRAPH",
    "CRDTForkDetected",
    "CksError",
    "ConflictClosed",
    "ConflictInbox",
    "ConflictKind",
    "ConflictRaised",
    "Conflicted",
    "DamagedBlob",
    "DocumentNotFound",
    "DocumentPublished",
    "Event",
    "EventBus",
    "GossipConflictDetected",
    "Graph",
    "HeadMoved",
    "InferenceConflictDetected",
    "InternalError",
    "InvalidKnowledge",
    "InvalidParameter",
    "KObject",
    "Keyring",
    "Limits",
    "MergeConflict",
    "Merged",
    "NotSupported",
    "ObjectNotFound",
    "Runtime",
    "RuntimeConfig",
    "SessionClosed",
    "SessionCreated",
    "SessionNotFound",
    "StaleClaim",
    "StoreBusy",
    "StoreFull",
    "StoreUnusable",
    "Subscription",
    "TaskNotFound",
    "TemporalConflictDetected",
    "TooLarge",
    "VerificationExpired",
    "VersionNotFound",
    "diff",
    "errors",
    "make_object",
    "merge",
    "parse_knowledge",
    "record_operations",
]
