"""The settings of a runtime: read once, checked, frozen and passed down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cks_runtime.flow.clock import Clock, wall_ms
from cks_runtime.model.errors import InvalidParameter
from cks_runtime.model.knowledge import Limits, check_session_id

SECONDS_MAX = 100 * 31_536_000  # a hundred years


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

    def __post_init__(self) -> None:
        """Raises InvalidParameter naming the field, its value and what is allowed."""
        check_session_id(self.default_session)
        _require(
            "sqlite_synchronous",
            self.sqlite_synchronous,
            self.sqlite_synchronous in ("FULL", "NORMAL"),
            "FULL or NORMAL",
        )
        for name in ("inference_sweep_interval", "provenance_sweep_interval", "temporal_sweep_interval"):
            value = getattr(self, name)
            _require(name, value, value is None or _is_time(value), "a number of seconds above 0, or None")
        for name in ("provenance_ttl_seconds", "outbox_lease_s"):
            _require(name, getattr(self, name), _is_time(getattr(self, name)), "a number of seconds above 0")
        attempts = self.outbox_attempts_max
        _require(
            "outbox_attempts_max",
            attempts,
            isinstance(attempts, int) and attempts >= 1,
            "a whole number from 1",
        )


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= SECONDS_MAX


def _require(name: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise InvalidParameter(f"{name} is {value!r}.", f"Allowed is {allowed}.", argument=name)
