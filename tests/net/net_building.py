"""A receiver on a real loopback port, raw sockets to it, and requests captured as bytes."""

from __future__ import annotations

import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from cks_runtime.net.client import ClientLimits, GossipClient
from cks_runtime.net.endpoint import EndpointLimits, GossipEndpoint
from cks_runtime.net.serve import serve
from cks_runtime.net.signing import Channel, Keys, seal_request

SECRET = b"s" * 32
OTHER_SECRET = b"t" * 32
SENDER = "a" * 16
RECEIVER = "b" * 16
PATH = "/gossip/digest"
QUICK = ClientLimits(connect_s=1, read_s=1, total_s=3)

_instances = itertools.count(1)


@dataclass
class Receiver:
    """A running replica: what its handler was given, and where it listens."""

    endpoint: GossipEndpoint
    port: int = 0
    taken: list[tuple[str, bytes, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def receiver(self) -> str:
        return self.endpoint._guard.receiver


Handler = Callable[[str, bytes, str], Awaitable[bytes]]


@asynccontextmanager
async def receiver(
    port: int = 0,
    *,
    handler: Handler | None = None,
    secret: bytes = SECRET,
    replica: str = RECEIVER,
    limits: EndpointLimits | None = None,
) -> AsyncIterator[Receiver]:
    """A receiver that answers with what it was sent, or as `handler` says."""

    async def answer(path: str, body: bytes, sender: str) -> bytes:
        running.taken.append((path, body, sender))
        return await handler(path, body, sender) if handler else b"<" + body + b">"

    endpoint = GossipEndpoint(secret, replica, f"instance{next(_instances)}", answer, limits)
    running = Receiver(endpoint)
    async with anyio.create_task_group() as group:
        running.port = await group.start(serve, endpoint, "127.0.0.1", port)
        yield running
        group.cancel_scope.cancel()


def client(**changes: Any) -> GossipClient:
    given: dict[str, Any] = {"secret": SECRET, "replica_id": SENDER, "limits": QUICK, **changes}
    return GossipClient(**given)


@dataclass
class Raw:
    """A status line and a body as they came over the wire; status 0 for a connection closed without an answer."""

    status: int
    head: bytes
    body: bytes


async def send_raw(port: int, data: bytes, within_s: float = 5) -> Raw:
    """What comes back for these bytes on a fresh connection."""
    came = bytearray()
    with anyio.fail_after(within_s):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            try:
                await stream.send(data)
                while not complete(bytes(came)):
                    came += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass
    head, _, body = bytes(came).partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1.1 ([0-9]{3}) ", head)
    return Raw(int(status[1]) if status else 0, head, body)


def complete(came: bytes) -> bool:
    head, end, body = came.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: ([0-9]+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def request_bytes(
    receiver: str,
    counter: int,
    body: bytes = b"hello",
    *,
    secret: bytes = SECRET,
    sender: str = SENDER,
    path: str = PATH,
    method: str = "POST",
    encoding: bytes = b"",
) -> bytes:
    """A whole signed request as it travels."""
    channel = Channel(receiver, counter - 1)
    keys = Keys.of(secret)
    seal, _ = seal_request(keys, method.encode(), path.encode(), encoding, sender, channel, body)
    extra = b"content-encoding: " + encoding + b"\r\n" if encoding else b""
    return (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n".encode()
        + extra
        + b"Authorization: "
        + seal
        + b"\r\n\r\n"
        + body
    )
