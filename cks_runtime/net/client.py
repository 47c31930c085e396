"""Asks a peer over HTTP: signs, bounds time and size, checks the reply, and goes on after a peer's restart."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

import anyio
import httpx
import orjson

from cks_runtime.net.encoding import IDENTITY, BodyDamaged, BodyTooLarge, Encoded, decode, encode
from cks_runtime.net.errors import (
    PeerError,
    PeerGarbage,
    PeerIsSelf,
    PeerRefused,
    PeerUnreachable,
    WrongSecret,
    one_line,
)
from cks_runtime.net.signing import (
    REPLY_HEADER,
    REQUEST_HEADER,
    Channel,
    Keys,
    check_replica_id,
    open_reply,
    seal_request,
)

ATTEMPTS_MAX: Final = 5
"""One to learn the instance, one after a dropped connection, the rest for another process of our replica."""
IN_FLIGHT_MAX: Final = 8
_METHOD: Final = b"POST"
_SECRETS_HINT: Final = "give all replicas the same CKS_GOSSIP_SECRET"


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Bounds of one request: seconds to connect, seconds without a byte, seconds in all, bytes of a body."""

    connect_s: float = 5.0
    read_s: float = 20.0
    total_s: float = 60.0
    body_bytes: int = 4 * 1024 * 1024


@dataclass(slots=True)
class Traffic:
    """What travelled to and from one peer: requests sent, body bytes each way as they travelled."""

    requests: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(slots=True)
class _Peer:
    """One configured address and what is known of the replica behind it."""

    base: httpx.URL
    shown: str
    # the first counter is random: while the instance is unknown it alone makes the request's MAC unique
    channel: Channel = field(default_factory=lambda: Channel("", secrets.randbits(62)))
    slots: anyio.Semaphore = field(default_factory=lambda: anyio.Semaphore(IN_FLIGHT_MAX))
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, slots=True)
class _Reply:
    """An answer as it travelled; `signed` tells whether a holder of the secret made it for our request."""

    status: int
    encoded: Encoded
    signed: bool


class GossipClient:
    """`async with GossipClient(secret, replica_id) as client: await client.request(url, path, body)`.

    Raises ValueError for a short secret. Takes no proxy, redirect, cookie or setting of the environment; keeps
    connections. At most 8 requests to one peer are under way at once, the others wait.
    """

    def __init__(
        self,
        secret: bytes,
        replica_id: str,
        limits: ClientLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._keys = Keys.of(secret)
        self._replica_id = check_replica_id(replica_id)
        self._limits = limits or ClientLimits()
        self._transports: dict[str, httpx.AsyncBaseTransport] = {}
        if transport is not None:
            self._transports = {"http": transport, "https": transport}
        self._peers: dict[str, _Peer] = {}

    async def __aenter__(self) -> GossipClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        with anyio.CancelScope(shield=True):
            for transport in set(self._transports.values()):
                await transport.aclose()

    def traffic(self, peer_url: str) -> Traffic:
        """What has travelled to and from this peer since the start."""
        peer = self._peers.get(peer_url)
        return peer.traffic if peer else Traffic()

    async def request(self, peer_url: str, path: str, body: bytes) -> bytes:
        """The peer's answer to `body` at `path`, which starts with `/gossip/`.

        Raises PeerUnreachable, PeerRefused (PeerIsSelf), PeerGarbage or WrongSecret, and ValueError for a path
        or a body that must not be sent. A request whose reply got lost may have been carried out.
        """
        target = _target(path)
        if len(body) > self._limits.body_bytes:
            raise ValueError(f"a gossip body has at most {self._limits.body_bytes} bytes, not {len(body)}")
        peer = self._peer(peer_url)
        try:
            with anyio.fail_after(self._limits.total_s):
                async with peer.slots:
                    return await self._ask(peer, target, await encode(body))
        except TimeoutError as error:
            raise PeerUnreachable(
                peer.shown, f"did not finish its answer within {self._limits.total_s:g} s"
            ) from error

    def _peer(self, peer_url: str) -> _Peer:
        peer = self._peers.get(peer_url)
        if peer is None:
            peer = self._peers[peer_url] = _parse_peer(peer_url)
        return peer

    async def _ask(self, peer: _Peer, target: bytes, content: Encoded) -> bytes:
        """Send until the peer takes it: it may first have to tell its instance or a higher counter."""
        dropped = False
        for _ in range(ATTEMPTS_MAX):
            # a peer that was never heard of refuses the first request whatever it says, so that one is empty
            sent = content if peer.channel.known else Encoded(IDENTITY, b"")
            try:
                reply = await self._exchange(peer, target, sent)
            except _CONNECTION_LOST as error:
                # the peer may have closed an idle connection just as it was used again
                if dropped:
                    raise _unreachable(peer, error, self._limits) from error
                dropped = True
                continue
            if reply.status == 409 and reply.signed:
                await self._go_on(peer, reply)
                continue
            return await self._body_of(peer, reply)
        raise PeerRefused(
            peer.shown,
            409,
            f"none of {ATTEMPTS_MAX} tries was new to it",
            "see whether two programs use one replica's database, or a copy of it, at once",
        )

    async def _exchange(self, peer: _Peer, target: bytes, content: Encoded) -> _Reply:
        seal, mac = seal_request(
            self._keys, _METHOD, target, content.encoding, self._replica_id, peer.channel, content.data
        )
        headers = [(REQUEST_HEADER, seal)]
        if content.encoding:
            headers.append((b"content-encoding", content.encoding))
        url = peer.base.copy_with(raw_path=peer.base.raw_path.rstrip(b"/") + target)
        request = httpx.Request(
            "POST", url, headers=headers, content=content.data, extensions={"timeout": self._timeouts()}
        )
        peer.traffic.requests += 1
        peer.traffic.bytes_sent += len(content.data)
        try:
            response = await self._transport(url.scheme).handle_async_request(request)
            try:
                data = await self._read(peer, response)
            finally:
                await response.aclose()
        except _CONNECTION_LOST:
            raise
        except (httpx.TransportError, httpx.StreamError, UnicodeError) as error:
            raise _unreachable(peer, error, self._limits) from error
        peer.traffic.bytes_received += len(data)
        encoded = Encoded(response.headers.get("content-encoding", "").encode(), data)
        shown = response.headers.get(REPLY_HEADER.decode(), "").encode()
        signed = open_reply(self._keys, mac, response.status_code, encoded.encoding, shown, data)
        return _Reply(response.status_code, encoded, signed is not None)

    async def _read(self, peer: _Peer, response: httpx.Response) -> bytes:
        data = bytearray()
        async for chunk in response.aiter_raw():
            data += chunk
            if len(data) > self._limits.body_bytes:
                raise PeerGarbage(peer.shown, f"answered with more than {self._limits.body_bytes} bytes")
        return bytes(data)

    async def _go_on(self, peer: _Peer, reply: _Reply) -> None:
        """Take from a signed 409 what the next request must say."""
        told = await self._told(peer, reply)
        code, receiver, counter = told.get("code"), told.get("receiver"), told.get("counter")
        if code == "same_replica":
            raise PeerIsSelf(
                peer.shown,
                409,
                "it has our own replica id",
                "take this replica's own address off the peers; a copied database must not gossip beside its source",
            )
        if not isinstance(receiver, str) or not isinstance(counter, int):
            raise PeerGarbage(peer.shown, "answered 409 without saying how to go on")
        try:
            peer.channel.adopt(receiver, counter)
        except ValueError as error:
            raise PeerGarbage(peer.shown, f"answered 409 with {one_line(str(error))}") from error

    async def _body_of(self, peer: _Peer, reply: _Reply) -> bytes:
        match reply:
            case _Reply(status=200, signed=True):
                return await self._decoded(peer, reply)
            case _Reply(status=status, signed=True):
                told = await self._told(peer, reply)
                raise PeerRefused(peer.shown, status, one_line(str(told.get("message", "no reason given"))))
            case _Reply(status=401):
                raise WrongSecret(
                    peer.shown,
                    "does not accept our signature: the gossip secrets of the two replicas differ",
                    _SECRETS_HINT,
                )
            case _Reply(status=413):
                raise PeerRefused(peer.shown, 413, "the request is larger than it allows")
            case _:
                raise PeerGarbage(
                    peer.shown,
                    f"answered {reply.status} without a valid signature",
                    "see whether the address is a replica's gossip port and nothing in between alters its answers",
                )

    async def _decoded(self, peer: _Peer, reply: _Reply) -> bytes:
        try:
            return await decode(reply.encoded, self._limits.body_bytes)
        except (BodyTooLarge, BodyDamaged) as error:
            raise PeerGarbage(peer.shown, f"sent a reply that cannot be read: {error}") from error

    async def _told(self, peer: _Peer, reply: _Reply) -> Mapping[str, object]:
        try:
            told = orjson.loads(await self._decoded(peer, reply))
        except orjson.JSONDecodeError as error:
            raise PeerGarbage(peer.shown, f"answered {reply.status} in no known form") from error
        return told if isinstance(told, dict) else {}

    def _timeouts(self) -> dict[str, float | None]:
        read_s, connect_s = self._limits.read_s, self._limits.connect_s
        return {"connect": connect_s, "read": read_s, "write": read_s, "pool": None}

    def _transport(self, scheme: str) -> httpx.AsyncBaseTransport:
        """The transport for http or https. Only the latter needs certificates, which are slow to load."""
        found = self._transports.get(scheme)
        if found is None:
            verify = True if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            # shorter than the server keeps idle connections, so that it is we who close them
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=30.0)
            found = httpx.AsyncHTTPTransport(verify=verify, trust_env=False, limits=limits)
            self._transports[scheme] = found
        return found


_CONNECTION_LOST = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError, httpx.CloseError)


def _target(path: str) -> bytes:
    if (
        not path.startswith("/gossip/")
        or not path.isascii()
        or not path.isprintable()
        or set(path) & set("?# %")
    ):
        raise ValueError(f"a gossip path starts with /gossip/ and has no query or escapes, not {path!r}")
    return path.encode()


def _parse_peer(peer_url: str) -> _Peer:
    shown = one_line(peer_url.rpartition("@")[2])
    try:
        url = httpx.URL(peer_url)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise PeerUnreachable(shown, f"is not an address: {one_line(str(error))}") from error
    if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 65536:
        raise PeerUnreachable(shown, "is not an address of the form http://host:port")
    plain = url.copy_with(userinfo=b"", query=None, fragment=None)
    return _Peer(plain, str(plain).rstrip("/"))


def _unreachable(peer: _Peer, error: Exception, limits: ClientLimits) -> PeerError:
    """The error for an exchange that did not come to an end."""
    text = one_line(str(error)) or type(error).__name__
    match error:
        case httpx.ConnectTimeout():
            return PeerUnreachable(peer.shown, f"took no connection within {limits.connect_s:g} s")
        case httpx.TimeoutException():
            return PeerUnreachable(peer.shown, f"was silent for {limits.read_s:g} s")
        case httpx.RemoteProtocolError() if "disconnected" not in text and "closed connection" not in text:
            return PeerGarbage(peer.shown, f"does not answer in HTTP: {text}")
        case httpx.RemoteProtocolError() | httpx.ReadError() | httpx.WriteError() | httpx.CloseError():
            return PeerUnreachable(peer.shown, f"broke the connection off: {text}")
        case _:
            return PeerUnreachable(
                peer.shown, f"cannot be reached: {text}", "see whether it runs and the address is right"
            )
