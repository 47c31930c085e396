"""The settings of a runtime: read once, checked, frozen and passed down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cks_runtime.flow.clock import Clock, wall_ms
from cks_runtime.model.knowledge import Limits


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """Everything a runtime can be told.

    `db_path`: a file path or `:memory:`. Sweep intervals are in seconds; None switches that sweeper off wholly.
    `record_secret` signs VerificationRecords; None takes the database's own, made once.
    """

    db_path: str = "~/.cks-mcp/cks_mcp.db"
    sqlite_synchronous: Literal["FULL", "NORMAL"] = "FULL"
    default_session: str = "main"
    limits: Limits = field(default_factory=Limits)
    record_secret: bytes | None = field(default=None, repr=False)
    inference_sweep_interval: float | None = 300.0
    provenance_sweep_interval: float | None = 3600.0
    temporal_sweep_interval: float | None = 3600.0
    provenance_ttl_seconds: float = 2_592_000.0
    outbox_lease_s: float = 120.0
    outbox_attempts_max: int = 5
    clock: Clock = wall_ms
