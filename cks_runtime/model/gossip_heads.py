"""What replicas compare: for each session its maximal heads, kept in a Merkle trie whose root is the digest.

The map holds, for each session, title, fork point and every head that no other known head descends from, each
with its holder: the replica that put it forward. Joining two maps keeps the maximal heads of both, so the order
and number of exchanges never matter, and replicas that know the same have the same root.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cks_runtime.model.canon import Hash, Json, canonical, digest, parse_exact
from cks_runtime.model.errors import DamagedBlob
from cks_runtime.model.history import Ancestry, is_ancestor
from cks_runtime.model.knowledge import SESSION_ID

REPLICA_ID: Final = re.compile(r"[a-z0-9]{16}")
TITLE_MAX: Final = 4_096
HEADS_MAX: Final = 1_000

Reading = Generator[list[Hash], Mapping[Hash, Ancestry], Mapping[Hash, str]]


@dataclass(frozen=True, slots=True)
class Origin:
    """What is fixed when a session is made: its title and where it forked."""

    title: str
    fork_session: str | None
    fork_version: Hash

    def as_json(self) -> dict[str, Json]:
        """The part of an entry that says it."""
        return {
            "title": self.title,
            "fork_session": self.fork_session,
            "fork_version": self.fork_version.hex(),
        }

    def first(self, other: Origin) -> Origin:
        """Of two origins of one session id the one that stands: that of the smaller canonical JSON."""
        return min(self, other, key=lambda origin: canonical(origin.as_json()))


@dataclass(frozen=True, slots=True)
class SessionHeads:
    """One entry of the map: `heads` are the session's maximal heads with their holders; never empty."""

    session_id: str
    origin: Origin
    heads: Mapping[Hash, str]
    hash: Hash = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash", digest(self.blob()))

    def blob(self) -> bytes:
        """Canonical JSON, whose hash is `hash`."""
        heads: dict[str, Json] = {head.hex(): holder for head, holder in self.heads.items()}
        return canonical({"session": self.session_id, **self.origin.as_json(), "heads": heads})


def session_heads_from_blob(data: bytes, expected: Hash) -> SessionHeads:
    """The entry stored as `data`. Raises DamagedBlob for any other bytes."""
    if digest(data) != expected:
        raise _damaged(expected, "its bytes have another hash")
    try:
        match parse_exact(data):
            case {
                "session": str(session_id),
                "title": str(title),
                "fork_session": None | str() as fork_session,
                "fork_version": str(fork_version),
                "heads": dict(heads),
            } if 0 < len(heads) <= HEADS_MAX and len(title) <= TITLE_MAX:
                _check_names(session_id, fork_session)
                origin = Origin(title, fork_session, _hash_from(fork_version))
                entry = SessionHeads(
                    session_id, origin, {_hash_from(head): _replica(holder) for head, holder in heads.items()}
                )
            case _:
                raise _damaged(expected, "it lacks a field of an entry")
    except ValueError as error:
        raise _damaged(expected, str(error)) from error
    if entry.hash != expected:
        raise _damaged(expected, "not in canonical form")
    return entry


def _check_names(session_id: str, fork_session: str | None) -> None:
    for name in (session_id, fork_session):
        if name is not None and not SESSION_ID.fullmatch(name):
            raise ValueError(f"{name[:80]!r} is not a session id")


def _replica(text: Json) -> str:
    if not isinstance(text, str) or not REPLICA_ID.fullmatch(text):
        raise ValueError(f"{str(text)[:80]!r} is not a replica id")
    return text


def _hash_from(text: Json) -> Hash:
    if not isinstance(text, str) or len(text) != 64:
        raise ValueError(f"{str(text)[:80]!r} is not a hash of 64 hex digits")
    return bytes.fromhex(text)


def _damaged(id: Hash, reason: str) -> DamagedBlob:
    return DamagedBlob(f"heads entry {id.hex()} is damaged: {reason}", blob=id.hex(), reason=reason)


def join_heads(*maps: Mapping[Hash, str]) -> Reading:
    """The maximal heads of all these, sorted; a head that several claim to hold is the smallest replica's.

    Yields the versions whose ancestry it needs.
    """
    joined: dict[Hash, str] = {}
    for known in maps:
        for head, holder in known.items():
            joined[head] = min(holder, joined.get(head, holder))
    kept = yield from maximal(joined)
    return {head: joined[head] for head in kept}


def maximal(
    heads: Iterable[Hash],
) -> Generator[list[Hash], Mapping[Hash, Ancestry], tuple[Hash, ...]]:
    """Those of `heads` that no other of them descends from, sorted."""
    ordered = sorted(set(heads))
    if len(ordered) < 2:
        return tuple(ordered)
    below: set[Hash] = set()
    for old in ordered:
        for new in ordered:
            if new is old or new in below:
                continue
            if (yield from is_ancestor(old, new)):
                below.add(old)
                break
    return tuple(head for head in ordered if head not in below)
