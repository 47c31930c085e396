"""Rules of a replica among others: whom to dial, whom it heard of, who merges a session, who works on it first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from cks_runtime.model.canon import Hash

HEARD_ROUNDS: Final = 10
"""A replica not heard of for more rounds than this is taken for gone until it is heard of again."""
HEARD_TOLD_MAX: Final = 6
STILL_ROUNDS: Final = 12
"""Heads that nobody merged for so long are merged by whoever holds them: the merger may not be reachable."""
BACK_OFF_MAX: Final = 4
"""Rounds between two tries of a peer that fails; small, so that a healed network is found at once."""
FAN_OUT: Final = 2
"""Partners a round: with two, news reach 16 replicas in about four rounds, and losing one costs no round."""
ELSEWHERE_MS: Final = 600_000
"""How long a conflict's task waits where another replica is nearer to the session."""


# ---- who was heard of


def heard_later(heard: Mapping[str, int]) -> dict[str, int]:
    """The same knowledge one round later; who is beyond `HEARD_ROUNDS` is left out."""
    return {id: ago + 1 for id, ago in heard.items() if ago < HEARD_ROUNDS}


def heard_joined(heard: Mapping[str, int], peer: str, theirs: Mapping[str, int], me: str) -> dict[str, int]:
    """Our knowledge after hearing from `peer`, who told how many rounds ago it heard of others."""
    joined = {**heard, peer: 0}
    for id, ago in theirs.items():
        if ago <= HEARD_ROUNDS:
            joined[id] = min(ago, joined.get(id, ago))
    joined.pop(me, None)
    return joined


def heard_told(heard: Mapping[str, int], salt: str) -> dict[str, int]:
    """What a digest tells of it: at most `HEARD_TOLD_MAX` of those heard of last, so that a digest stays small.

    `salt` picks among equals; where it varies, all are told of in a few rounds.
    """
    order = sorted(heard, key=lambda id: (heard[id], sha256((salt + id).encode()).digest()))
    return {id: heard[id] for id in order[:HEARD_TOLD_MAX]}


def merger(session_id: str, me: str, heard: Iterable[str]) -> str:
    """Who merges the session's heads: of all that were heard of, so that most replicas name the same one."""
    return min({me, *heard}, key=lambda id: sha256((session_id + id).encode()).digest())


def nearest(session_id: str, me: str, heard: Iterable[str]) -> str:
    """Who works on the session's conflicts first: the replica whose id is nearest by XOR of SHA-256."""
    target = int.from_bytes(sha256(session_id.encode()).digest())

    def distance(id: str) -> int:
        return target ^ int.from_bytes(sha256(id.encode()).digest())

    return min({me, *heard}, key=distance)


@dataclass(frozen=True, slots=True)
class Still:
    """A session's set of heads, and for how many rounds it has not changed."""

    heads: frozenset[Hash]
    rounds: int = 0

    def later(self) -> Still:
        """One round later."""
        return replace(self, rounds=self.rounds + 1)


def still_after(before: Still | None, heads: Iterable[Hash]) -> Still:
    """The count of rounds goes on while the heads are the same, and begins anew when they changed."""
    now = frozenset(heads)
    return before if before is not None and before.heads == now else Still(now)


def may_merge(session_id: str, me: str, heard: Iterable[str], still: Still) -> bool:
    """Whether this replica merges the session's heads now."""
    return merger(session_id, me, heard) == me or still.rounds >= STILL_ROUNDS


# ---- whom to dial


@dataclass(frozen=True, slots=True)
class Peer:
    """An address to dial. A seed is never forgotten: it only waits longer between tries while it fails."""

    address: str
    failures: int = 0
    due_round: int = 0


def peer_failed(peer: Peer, now_round: int) -> Peer:
    """The peer after a failed exchange: next try in 1, 2, 4 rounds, then every `BACK_OFF_MAX`."""
    wait = min(BACK_OFF_MAX, 1 << min(peer.failures, 10))
    return replace(peer, failures=peer.failures + 1, due_round=now_round + wait)


def peer_answered(peer: Peer) -> Peer:
    """The peer after an exchange that worked."""
    return replace(peer, failures=0, due_round=0)


def partners(peers: Sequence[Peer], now_round: int, order: Sequence[int]) -> list[Peer]:
    """Whom to exchange with this round: the first `FAN_OUT` in `order` (a shuffle of the indexes) that are due.

    When all are waiting after failures, those who wait the shortest time, so that no round is idle.
    """
    shuffled = [peers[index] for index in order]
    due = [peer for peer in shuffled if peer.due_round <= now_round]
    return due[:FAN_OUT] if due else sorted(shuffled, key=lambda peer: peer.due_round)[:1]
