"""Signatures of gossip messages and the refusal of replays: pure values and counters, no I/O, clock or chance.

A request carries `authorization: CKS1 <sender>.<receiver>.<counter>.<digest>.<mac>` (a token68 of RFC 9110):
the sender's replica id; the instance of the receiver it is meant for, empty while that is unknown; a counter;
the SHA-256 of the body as it travels; HMAC-SHA256 over all of these, the method, the target and the content
encoding. As the digest is signed, a forged request is refused before its body is read. A reply carries
`cks-reply: <replica>.<mac>`; its MAC also covers the MAC of the request, so it answers that request only.

Replays. A receiver takes a request only when it is meant for its present instance, and each counter of a
sender once: it keeps the highest one and a window of bits below it (RFC 4303 §3.4.3), so that concurrent
requests of one sender may overtake each other. Nothing is kept per request and no clock is trusted: a restart
draws a new instance, which makes everything recorded before worthless. The receiver tells its instance and
the sender's highest counter in a signed 409; a sender that is new, restarted, or one of two processes of one
replica, goes on from there. So a request may be repeated when its reply is lost: handlers are idempotent.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from cks_runtime.model.records import derive_key

SECRET_BYTES_MIN: Final = 32
COUNTER_MAX: Final = 2**63 - 1
WINDOW: Final = 1024
"""Counters below the highest that may still arrive; a client has far fewer requests in flight."""
SENDERS_MAX: Final = 4096

REQUEST_HEADER: Final = b"authorization"
REPLY_HEADER: Final = b"cks-reply"
SCHEME: Final = b"CKS1"

_REPLICA: Final = re.compile(r"[a-z0-9]{16}")
_INSTANCE: Final = re.compile(r"[a-z0-9]{1,32}")
_RECEIVER: Final = re.compile(r"[a-z0-9]{1,32}-[0-9]{1,20}")
_SEAL: Final = re.compile(
    rb"CKS1 ([a-z0-9]{16})\.([a-z0-9-]{0,64})\.([0-9]{1,20})\.([A-Za-z0-9_-]{43})\.([A-Za-z0-9_-]{43})"
)
_REPLY: Final = re.compile(rb"([a-z0-9]{16})\.([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Keys:
    """The two keys of a gossip secret: one signs requests, the other replies, so neither passes for the other."""

    request: bytes = field(repr=False)
    reply: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> Keys:
        """Raises ValueError for a secret of fewer than 32 bytes."""
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the gossip secret needs at least {SECRET_BYTES_MIN} bytes, has {len(secret)}")
        return cls(derive_key(secret, "gossip requests"), derive_key(secret, "gossip replies"))


@dataclass(frozen=True, slots=True)
class Seal:
    """What a request says of itself in its header; `mac` proves it."""

    sender: str
    receiver: str
    counter: int
    digest: bytes
    mac: bytes

    def fits(self, body: bytes) -> bool:
        """Whether this is the body that was signed."""
        return hmac.compare_digest(self.digest, _digest(body))


def check_replica_id(text: str) -> str:
    """Raises ValueError for what is no replica id."""
    if not _REPLICA.fullmatch(text):
        raise ValueError(f"a replica id is 16 characters of a-z and 0-9, not {text!r}")
    return text


def check_instance_id(text: str) -> str:
    """Raises ValueError for what is no instance id."""
    if not _INSTANCE.fullmatch(text):
        raise ValueError(f"an instance id is 1 to 32 characters of a-z and 0-9, not {text!r}")
    return text


def seal_request(
    keys: Keys, method: bytes, target: bytes, encoding: bytes, sender: str, channel: Channel, body: bytes
) -> tuple[bytes, bytes]:
    """The header value of a request with the channel's next counter, and its MAC, which the reply answers.

    `target` is the path with its query, `encoding` the content-encoding or empty, `body` as it travels.
    """
    counter = channel.next_counter()
    said = (sender.encode(), channel.receiver.encode(), b"%d" % counter, _digest(body))
    mac = _mac(keys.request, (b"cks1 request", method, target, encoding, *said))
    return SCHEME + b" " + b".".join((*said, mac)), mac


def open_request(keys: Keys, method: bytes, target: bytes, encoding: bytes, header: bytes) -> Seal | None:
    """The seal when the secret's holder made it for this request, else None. The body is still to be compared."""
    parts = _SEAL.fullmatch(header)
    if parts is None:
        return None
    sender, receiver, counter, digest, mac = parts.groups()
    fields = (b"cks1 request", method, target, encoding, sender, receiver, counter, digest)
    if not hmac.compare_digest(_mac(keys.request, fields), mac):
        return None
    return Seal(sender.decode(), receiver.decode(), int(counter), digest, mac)


def seal_reply(
    keys: Keys, request_mac: bytes, replica: str, status: int, encoding: bytes, body: bytes
) -> bytes:
    """The header value of a reply to the request with this MAC; `body` is as it travels."""
    return replica.encode() + b"." + _reply_mac(keys, request_mac, replica.encode(), status, encoding, body)


def open_reply(
    keys: Keys, request_mac: bytes, status: int, encoding: bytes, header: bytes, body: bytes
) -> str | None:
    """The replica that answered, or None when this is not its answer to that request."""
    parts = _REPLY.fullmatch(header)
    if parts is None:
        return None
    replica, mac = parts.groups()
    expected = _reply_mac(keys, request_mac, replica, status, encoding, body)
    return replica.decode() if hmac.compare_digest(expected, mac) else None


def _reply_mac(
    keys: Keys, request_mac: bytes, replica: bytes, status: int, encoding: bytes, body: bytes
) -> bytes:
    fields = (b"cks1 reply", request_mac, replica, b"%d" % status, encoding, _digest(body))
    return _mac(keys.reply, fields)


def _mac(key: bytes, fields: Iterable[bytes]) -> bytes:
    """MAC over length-prefixed fields, so that no two lists of fields have the same bytes."""
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in fields)
    return _text(hmac.digest(key, framed, "sha256"))


def _digest(body: bytes) -> bytes:
    return _text(hashlib.sha256(body).digest())


def _text(raw: bytes) -> bytes:
    return urlsafe_b64encode(raw).rstrip(b"=")


# ---- the sender's side


@dataclass(slots=True)
class Channel:
    """What a sender knows of one receiver: its instance, and the counter used last."""

    receiver: str = ""
    counter: int = 0

    @property
    def known(self) -> bool:
        """Whether the receiver has told its instance."""
        return bool(self.receiver)

    def next_counter(self) -> int:
        """A counter no earlier request on this channel had."""
        self.counter += 1
        return self.counter

    def adopt(self, receiver: str, counter: int) -> None:
        """Go on as a receiver's 409 says; counters already used with this instance are not used again.

        Raises ValueError for what no receiver says.
        """
        if not _RECEIVER.fullmatch(receiver) or not 0 <= counter <= COUNTER_MAX:
            raise ValueError(f"an impossible instance {receiver!r} or counter {counter}")
        self.counter = max(self.counter, counter) if receiver == self.receiver else counter
        self.receiver = receiver


# ---- the receiver's side


@dataclass(frozen=True, slots=True)
class Stale:
    """The request is not new here; `receiver` and `counter` are what its sender should go on with."""

    code: Literal["unknown_instance", "replayed"]
    receiver: str
    counter: int


@dataclass(slots=True)
class _Window:
    """Counters of one sender: bit i of `seen` is counter `highest - i`."""

    highest: int = 0
    seen: int = 1

    def has(self, counter: int) -> bool:
        """Whether it was taken already, or is so old that this cannot be told."""
        below = self.highest - counter
        return below >= WINDOW or (below >= 0 and bool(self.seen >> below & 1))

    def add(self, counter: int) -> None:
        ahead = counter - self.highest
        if ahead >= WINDOW:
            self.highest, self.seen = counter, 1
        elif ahead > 0:
            self.highest, self.seen = counter, (self.seen << ahead | 1) & ((1 << WINDOW) - 1)
        else:
            self.seen |= 1 << -ahead


class Guard:
    """Takes each genuine request once; holds one window a sender, for at most `senders_max` senders.

    When a counter or the table of senders runs out, the guard begins a new epoch: a new instance, to which all
    senders come by one 409 each. Forgetting a single sender instead would let its old requests in again.
    """

    def __init__(self, instance_id: str, senders_max: int = SENDERS_MAX) -> None:
        self._instance_id = check_instance_id(instance_id)
        self._epoch = 0
        self._senders_max = senders_max
        self._windows: dict[str, _Window] = {}

    @property
    def receiver(self) -> str:
        """The instance that requests must name now."""
        return f"{self._instance_id}-{self._epoch}"

    def check(self, seal: Seal) -> Stale | None:
        """Why a genuine request cannot be taken; None when it can."""
        window = self._windows.get(seal.sender)
        highest = window.highest if window else 0
        if seal.receiver != self.receiver:
            return Stale("unknown_instance", self.receiver, highest)
        if seal.counter > COUNTER_MAX or (window is None and len(self._windows) >= self._senders_max):
            self._epoch += 1
            self._windows.clear()
            return Stale("unknown_instance", self.receiver, 0)
        if (window or _Window()).has(seal.counter):
            return Stale("replayed", self.receiver, highest)
        return None

    def take(self, seal: Seal) -> Stale | None:
        """Like `check`; from now on this request counts as taken."""
        stale = self.check(seal)
        if stale is None:
            self._windows.setdefault(seal.sender, _Window()).add(seal.counter)
        return stale
