"""Answers gossip requests: a pure ASGI app that checks size, signature and newness before it reads a body."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import orjson
import structlog

from cks_runtime.model.errors import CksError, TooLarge
from cks_runtime.net.encoding import IDENTITY, BodyDamaged, BodyTooLarge, Encoded, decode, encode
from cks_runtime.net.errors import one_line
from cks_runtime.net.signing import (
    REPLY_HEADER,
    REQUEST_HEADER,
    SCHEME,
    Guard,
    Keys,
    Seal,
    Stale,
    check_replica_id,
    open_request,
    seal_reply,
)

Handler = Callable[[str, bytes, str], Awaitable[bytes]]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

DISCARD_BYTES_MAX: Final = 16 * 1024 * 1024
DISCARD_S: Final = 2.0
SHORT_BYTES: Final = 64 * 1024
UNTRUSTED: Final = (
    "the signature does not fit: the gossip secrets differ, or the message was altered on its way"
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """Bounds of one request: bytes of a body (as it travels and unpacked), seconds to send it and to answer it."""

    body_bytes: int = 4 * 1024 * 1024
    body_s: float = 30.0
    answer_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Reply:
    """An answer before it is sent; `seal` is what it answers, None where nobody proved who asks."""

    status: int
    body: bytes
    seal: Seal | None = None
    reason: str = ""

    @classmethod
    def refusal(
        cls, status: int, code: str, message: str, seal: Seal | None = None, **more: object
    ) -> _Reply:
        """A refusal as the client reads it; `message` is shown to the peer's operator."""
        text = one_line(message)
        return cls(status, orjson.dumps({"code": code, "message": text, **more}), seal, text)

    @classmethod
    def stale(cls, stale: Stale, seal: Seal) -> _Reply:
        """What the sender needs to go on. An unknown instance is how every acquaintance begins: no reason."""
        told = {"code": stale.code, "receiver": stale.receiver, "counter": stale.counter}
        reason = (
            "" if stale.code == "unknown_instance" else f"{seal.sender} used counter {seal.counter} again"
        )
        return cls(409, orjson.dumps(told), seal, reason)

    @classmethod
    def too_large(cls, bytes_max: int) -> _Reply:
        return cls.refusal(413, "too_large", f"a gossip body has at most {bytes_max} bytes")


@dataclass(slots=True)
class _Incoming:
    """One request: its head, and its body as far as it was read."""

    method: str
    target: bytes
    headers: dict[bytes, bytes]
    ambiguous: bool
    receive: Receive
    finished: bool = False

    @classmethod
    def of(cls, scope: Message, receive: Receive) -> _Incoming:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        target: bytes = scope.get("raw_path") or scope["path"].encode()
        target = target.removeprefix(scope.get("root_path", "").encode())
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        names = [name for name, _ in scope["headers"] if name in (REQUEST_HEADER, b"content-encoding")]
        return cls(scope["method"], target, headers, len(names) != len(set(names)), receive)

    @property
    def announced_bytes(self) -> int:
        """The content-length, which the server has checked; 0 where there is none."""
        text = self.headers.get(b"content-length", b"0")
        return int(text) if text.isdigit() and len(text) < 20 else 0

    @property
    def encoding(self) -> bytes:
        return self.headers.get(b"content-encoding", IDENTITY)

    async def read(self, bytes_max: int) -> bytes:
        """The body as it travelled. Raises BodyTooLarge, or ConnectionError when the sender went away."""
        data = bytearray()
        while not self.finished:
            data += await self._chunk()
            if len(data) > bytes_max:
                raise BodyTooLarge(f"the body has more than {bytes_max} bytes")
        return bytes(data)

    @property
    def short(self) -> bool:
        """Whether the whole body is small enough to be read before a refusal is sent."""
        return b"transfer-encoding" not in self.headers and self.announced_bytes <= SHORT_BYTES

    async def discard(self) -> None:
        """Read and forget the rest, within bounds: a sender that still writes might not see the answer."""
        passed = 0
        with anyio.move_on_after(DISCARD_S), suppress(ConnectionError):
            while not self.finished and passed <= DISCARD_BYTES_MAX:
                passed += len(await self._chunk())

    async def _chunk(self) -> bytes:
        message = await self.receive()
        if message["type"] != "http.request":
            self.finished = True
            raise ConnectionError("the sender went away")
        self.finished = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body


@dataclass(slots=True)
class Refusals:
    """How many requests were refused, by status, and why the last one was: for the operator's status."""

    by_status: Counter[int] = field(default_factory=Counter)
    last: str = ""

    def note(self, status: int, text: str, client: str) -> None:
        """Count one; the 1st, 2nd, 4th, 8th … of a status is logged, so that a flood cannot fill the log."""
        self.by_status[status] += 1
        self.last = f"{status} to {client}: {text}"
        count = self.by_status[status]
        if count & (count - 1) == 0:
            log.warning("gossip request refused", status=status, reason=text, client=client, count=count)


class GossipEndpoint:
    """ASGI app for `POST /gossip/…`; `handler(path, body, sender_id)` gives the answer to a genuine new request.

    A ValueError or CksError of the handler becomes a signed 400 (413 for TooLarge, 503 for a fault of this
    replica), anything else a signed 500 whose cause is only in the log. Raises ValueError for a short secret.
    """

    def __init__(
        self,
        secret: bytes,
        replica_id: str,
        instance_id: str,
        handler: Handler,
        limits: EndpointLimits | None = None,
    ) -> None:
        self._keys = Keys.of(secret)
        self._replica_id = check_replica_id(replica_id)
        self._guard = Guard(instance_id)
        self._handler = handler
        self._limits = limits or EndpointLimits()
        self.refusals = Refusals()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"gossip speaks HTTP only, not {scope['type']}")
        incoming = _Incoming.of(scope, receive)
        try:
            reply = await self._answer(incoming)
        except ConnectionError:
            return
        except Exception:
            log.exception("gossip endpoint failed")
            reply = _Reply.refusal(500, "internal_error", "internal error")
        if reply.reason:
            client = scope.get("client") or ("unknown", 0)
            self.refusals.note(reply.status, reply.reason, str(client[0]))
        await self._send(incoming, reply, send)

    async def _answer(self, incoming: _Incoming) -> _Reply:
        if incoming.announced_bytes > self._limits.body_bytes:
            return _Reply.too_large(self._limits.body_bytes)
        seal = self._open(incoming)
        if seal is None:
            return _Reply.refusal(401, "unauthorized", UNTRUSTED)
        if seal.sender == self._replica_id:
            return _Reply.refusal(409, "same_replica", "a replica does not gossip with itself", seal)
        stale = self._guard.check(seal)
        if stale is not None:
            return _Reply.stale(stale, seal)
        try:
            with anyio.fail_after(self._limits.body_s):
                data = await incoming.read(self._limits.body_bytes)
        except TimeoutError:
            return _Reply.refusal(408, "too_slow", f"the body took longer than {self._limits.body_s:g} s")
        except BodyTooLarge:
            return _Reply.too_large(self._limits.body_bytes)
        if not seal.fits(data):
            return _Reply.refusal(401, "unauthorized", UNTRUSTED)
        # other requests ran while the body came in, so only now is it certain that this one is new
        stale = self._guard.take(seal)
        if stale is not None:
            return _Reply.stale(stale, seal)
        return await self._carry_out(incoming, seal, data)

    def _open(self, incoming: _Incoming) -> Seal | None:
        if incoming.ambiguous:
            return None
        header = incoming.headers.get(REQUEST_HEADER, b"")
        return open_request(self._keys, incoming.method.encode(), incoming.target, incoming.encoding, header)

    async def _carry_out(self, incoming: _Incoming, seal: Seal, data: bytes) -> _Reply:
        path = incoming.target.decode("ascii", "replace")
        if incoming.method != "POST" or not path.startswith("/gossip/"):
            return _Reply.refusal(400, "invalid_parameter", "only POST to /gossip/ is answered", seal)
        try:
            body = await decode(Encoded(incoming.encoding, data), self._limits.body_bytes)
            with anyio.fail_after(self._limits.answer_s):
                return _Reply(200, await self._handler(path, body, seal.sender), seal)
        except (BodyTooLarge, TooLarge) as error:
            return _Reply.refusal(413, "too_large", str(error), seal)
        except BodyDamaged as error:
            return _Reply.refusal(400, "invalid_parameter", str(error), seal)
        except TimeoutError:
            return _Reply.refusal(503, "internal_error", "this replica is too slow at the moment", seal)
        except CksError as error:
            ours = error.code == "internal_error"
            return _Reply.refusal(503 if ours else 400, error.code, error.message, seal)
        except ValueError as error:
            return _Reply.refusal(400, "invalid_parameter", str(error), seal)
        except Exception:
            error_id = uuid.uuid4().hex[:12]
            log.exception("gossip handler failed", error_id=error_id, path=path, sender=seal.sender)
            return _Reply.refusal(500, "internal_error", f"internal error {error_id}", seal)

    async def _send(self, incoming: _Incoming, reply: _Reply, send: Send) -> None:
        content = await encode(reply.body)
        headers = [(b"content-length", b"%d" % len(content.data))]
        if content.encoding:
            headers.append((b"content-encoding", content.encoding))
        if reply.seal is not None:
            sealed = seal_reply(
                self._keys, reply.seal.mac, self._replica_id, reply.status, content.encoding, content.data
            )
            headers.append((REPLY_HEADER, sealed))
        if reply.status == 401:
            headers.append((b"www-authenticate", SCHEME))
        if incoming.short:
            await incoming.discard()
        if not incoming.finished:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": content.data, "more_body": not incoming.finished})
        if not incoming.finished:
            await incoming.discard()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
