"""Messages of the gossip protocol: one JSON line, then the blobs it announces, as plain bytes.

A message is a request or a reply; the transport tells which. Whatever does not read as one is refused with
`GossipRefused`, which says why; nothing else is raised for bytes from outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from cks_runtime.model.canon import Hash, Json
from cks_runtime.model.errors import CksError
from cks_runtime.model.gossip_heads import REPLICA_ID

PROTOCOL: Final = 1
PATH: Final = "/gossip/exchange"
PAGE_BYTES: Final = 1_048_576
"""Blobs in one message; a single blob may be as large."""
MESSAGE_BYTES_MAX: Final = 2 * PAGE_BYTES
WANT_MAX: Final = 2_000
HISTORY_MAX: Final = 1_000
EXTRA_BYTES: Final = 131_072
"""Content sent along with versions beyond what was asked."""
_HEARD_MAX: Final = 1_000


class GossipRefused(ValueError):
    """A peer sent what this protocol does not allow, or does not have what it offered."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class OwnAddress(CksError):
    """The address that was dialled is this replica's own."""


class StaleTurn(GossipRefused):
    """A turn that is not the next of its conversation: it came twice, or late. The conversation goes on."""


@dataclass(frozen=True, slots=True)
class Digest:
    """Where the sender stands: the root of its map, and how many of its rounds ago it heard of each replica.

    A reply with another root carries `blobs` of the map that changed last, which often saves asking for them.
    """

    sender: str
    root: Hash
    heard: Mapping[str, int]
    blobs: tuple[bytes, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class WantBlobs:
    """Send these blobs, as many as fit one page, in this order."""

    hashes: tuple[Hash, ...]


@dataclass(frozen=True, slots=True)
class WantHistory:
    """Send up to `limit` versions, newest first: ancestors of `heads` that are not ancestors of `have`."""

    heads: tuple[Hash, ...]
    have: tuple[Hash, ...]
    limit: int


@dataclass(frozen=True, slots=True)
class Blobs:
    """The answer to both: blobs, which the receiver names by hashing them.

    After versions comes what they changed, as far as it fits; that often saves asking for it.
    """

    blobs: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """Your turn to ask: step 0 offers the sender's map (with blobs of what changed last), later steps answer
    what the receiver asked last.

    `exchange` names the conversation, so that a step that comes twice or late is told from the expected one.
    """

    exchange: str
    step: int
    root: Hash
    blobs: tuple[bytes, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more to ask; `root` is the sender's map now."""

    root: Hash


Want = WantBlobs | WantHistory
Message = Digest | WantBlobs | WantHistory | Blobs | Turn | Done


def encode(message: Message) -> bytes:
    """The message's bytes."""
    blobs: Sequence[bytes] = ()
    match message:
        case Digest(sender, root, heard, blobs):
            head: dict[str, Json] = {
                "kind": "digest",
                "sender": sender,
                "root": root.hex(),
                "heard": dict(heard),
            }
        case WantBlobs(hashes):
            head = {"kind": "want", "hashes": _hex(hashes)}
        case WantHistory(heads, have, limit):
            head = {"kind": "history", "heads": _hex(heads), "have": _hex(have), "limit": limit}
        case Blobs(blobs):
            head = {"kind": "blobs"}
        case Turn(exchange, step, root, blobs):
            head = {"kind": "turn", "exchange": exchange, "step": step, "root": root.hex()}
        case Done(root):
            head = {"kind": "done", "root": root.hex()}
    head["v"] = PROTOCOL
    if blobs:
        head["sizes"] = [len(blob) for blob in blobs]
    return orjson.dumps(head) + b"\n" + b"".join(blobs)


def decode(data: bytes) -> Message:
    """The message that `data` is. Raises GossipRefused."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise GossipRefused(f"a message of {len(data)} bytes; at most {MESSAGE_BYTES_MAX} are taken")
    line, mark, rest = data.partition(b"\n")
    try:
        head = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise GossipRefused(f"not a message: {error}") from None
    if not isinstance(head, dict) or not mark:
        raise GossipRefused("not a message")
    if head.get("v") != PROTOCOL:
        raise GossipRefused(f"protocol {str(head.get('v'))[:20]}; this program speaks {PROTOCOL}")
    return _message(head, _cut(head.get("sizes", []), rest))


def _message(head: dict[str, Json], blobs: tuple[bytes, ...]) -> Message:
    match head:
        case {"kind": "digest", "sender": sender, "root": root, "heard": dict(heard)} if (
            len(heard) <= _HEARD_MAX
        ):
            ago = {_replica(id): _count(rounds) for id, rounds in heard.items()}
            return Digest(_replica(sender), _hash(root), ago, blobs)
        case {"kind": "want", "hashes": list(hashes)} if 0 < len(hashes) <= WANT_MAX:
            return WantBlobs(_hashes(hashes))
        case {"kind": "history", "heads": list(heads), "have": list(have), "limit": limit} if (
            0 < len(heads) <= WANT_MAX and len(have) <= WANT_MAX
        ):
            return WantHistory(_hashes(heads), _hashes(have), min(_count(limit), HISTORY_MAX))
        case {"kind": "blobs"}:
            return Blobs(blobs)
        case {"kind": "turn", "exchange": str(exchange), "step": step, "root": root} if len(exchange) <= 64:
            return Turn(exchange, _count(step), _hash(root), blobs)
        case {"kind": "done", "root": root}:
            return Done(_hash(root))
        case _:
            raise GossipRefused(f"no message of kind {str(head.get('kind'))[:40]!r} in this form")


def _cut(sizes: Json, rest: bytes) -> tuple[bytes, ...]:
    if not isinstance(sizes, list):
        raise GossipRefused("sizes is not a list")
    blobs, at = [], 0
    for size in sizes:
        end = at + _count(size)
        blobs.append(rest[at:end])
        at = end
    if at != len(rest):
        raise GossipRefused(f"{len(rest)} bytes of blobs where {at} were announced")
    return tuple(blobs)


def _hex(hashes: Iterable[Hash]) -> list[Json]:
    return [hash.hex() for hash in hashes]


def _hashes(values: Sequence[Json]) -> tuple[Hash, ...]:
    return tuple(_hash(value) for value in values)


def _hash(value: Json) -> Hash:
    try:
        if isinstance(value, str) and len(value) == 64:
            return bytes.fromhex(value)
    except ValueError:
        pass
    raise GossipRefused(f"{str(value)[:80]!r} is not a hash of 64 hex digits")


def _count(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**53:
        raise GossipRefused(f"{str(value)[:40]!r} is not a count")
    return value


def _replica(value: Json) -> str:
    if not isinstance(value, str) or not REPLICA_ID.fullmatch(value):
        raise GossipRefused(f"{str(value)[:40]!r} is not a replica id")
    return value


def page(blobs: Iterable[bytes]) -> tuple[bytes, ...]:
    """The first blobs that fit one message; at least one, so that whoever asks again comes to an end."""
    taken: list[bytes] = []
    size = 0
    for blob in blobs:
        size += len(blob)
        if taken and size > PAGE_BYTES:
            break
        taken.append(blob)
    return tuple(taken)
