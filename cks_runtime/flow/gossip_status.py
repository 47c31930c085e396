"""What an operator can see of gossip: its state, each peer, and what was refused and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from cks_runtime.model.gossip_exchange import Exchanged
from cks_runtime.model.times import format_ms

REFUSED_MAX: Final = 20


@dataclass(slots=True)
class PeerStatus:
    """A configured peer. `versions_behind`: what the last exchange found we lacked; 0 when it found us equal."""

    address: str
    replica_id: str | None = None
    state: Literal["new", "ok", "failing", "self"] = "new"
    last_exchange_ms: int | None = None
    last_round: int | None = None
    rounds: int = 0
    failures: int = 0
    last_error: str | None = None
    in_sync: bool = False
    versions_behind: int = 0
    versions_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def answered(self, done: Exchanged, round: int, now_ms: int) -> None:
        """Note an exchange that worked."""
        self.state, self.failures = "ok", 0
        self.rounds += 1
        self.last_exchange_ms, self.last_round = now_ms, round
        self.in_sync, self.versions_behind = done.in_sync, done.pulled.versions
        self.versions_received += done.pulled.versions

    def failed(self, reason: str, failures: int) -> None:
        """Note one that did not."""
        self.state, self.failures, self.last_error, self.in_sync = "failing", failures, reason, False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A session of a peer that was left alone, and why."""

    address: str
    session_id: str
    reason: str
    at_ms: int


@dataclass(slots=True)
class Status:
    """The state of the whole service; times in epoch ms."""

    state: Literal["starting", "active", "standby"] = "starting"
    address: str | None = None
    port_error: str | None = None
    last_error: str | None = None
    peers: dict[str, PeerStatus] = field(default_factory=dict)
    heard_ms: dict[str, int] = field(default_factory=dict)
    left_alone: list[Refusal] = field(default_factory=list)

    def listening(self, address: str) -> None:
        """The port is ours."""
        self.address, self.port_error = address, None

    def port_trouble(self, message: str) -> None:
        """The port is not ours."""
        self.address, self.port_error = None, message

    def trouble(self, message: str) -> None:
        """Something failed and is tried again."""
        self.last_error = message

    def refused(self, told: Refusal) -> bool:
        """Note a refusal; False when the same is noted already."""
        known = any(
            (one.address, one.session_id, one.reason) == (told.address, told.session_id, told.reason)
            for one in self.left_alone
        )
        self.left_alone = [told, *(one for one in self.left_alone if one.reason != told.reason)][:REFUSED_MAX]
        return not known

    def as_json(self, round: int, heard: Mapping[str, int], at_the_door: Mapping[str, Any]) -> dict[str, Any]:
        """The status as tools show it."""
        return {
            "enabled": True,
            "state": self.state,
            "address": self.address,
            "port_error": self.port_error,
            "last_error": self.last_error,
            "rounds": round,
            "peers": [self._peer(peer, heard) for peer in self.peers.values()],
            "heard": [
                {"replica_id": id, "rounds_ago": ago, "last_heard_at": _time(self.heard_ms.get(id))}
                for id, ago in sorted(heard.items())
            ],
            "refused_sessions": [
                {
                    "peer": one.address,
                    "session_id": one.session_id,
                    "reason": one.reason,
                    "at": format_ms(one.at_ms),
                }
                for one in self.left_alone
            ],
            "refused_requests": dict(at_the_door),
        }

    def _peer(self, peer: PeerStatus, heard: Mapping[str, int]) -> dict[str, Any]:
        shown = asdict(peer)
        shown["last_exchange_at"] = _time(shown.pop("last_exchange_ms"))
        id = peer.replica_id
        shown["last_heard_at"] = _time(self.heard_ms.get(id)) if id is not None else None
        shown["last_heard_rounds_ago"] = heard.get(id) if id is not None else None
        return shown


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_ms(at_ms)
