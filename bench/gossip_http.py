"""What does an idle gossip exchange cost, against an empty httpx request to an empty app on the same server?

Both run in one process over loopback, by turns. Bytes are counted by a relay between client and server.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.abc
import httpx

from cks_runtime.net.client import GossipClient
from cks_runtime.net.endpoint import GossipEndpoint
from cks_runtime.net.serve import serve

ROUNDS = 9
REQUESTS = 300
SECRET = b"s" * 32
DIGEST = os.urandom(50).hex().encode()
PAGE = b'{"objects":[' + b",".join(b'{"id":"%d","x":"%s"}' % (i, DIGEST) for i in range(8000)) + b"]}"


async def empty_app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def same(path: str, body: bytes, sender: str) -> bytes:
    return body


async def seconds_for(send: Callable[[], Awaitable[object]], times: int) -> float:
    gc.collect()
    started = time.perf_counter()
    for _ in range(times):
        await send()
    return (time.perf_counter() - started) / times


async def ratio(url: str, empty_url: str) -> tuple[float, float]:
    """Median of the ratios of neighbouring runs, and milliseconds an exchange."""
    found, spent = [], []
    async with GossipClient(SECRET, "a" * 16) as client, httpx.AsyncClient(trust_env=False) as plain:
        for _ in range(ROUNDS):
            empty = await seconds_for(lambda: plain.post(empty_url), REQUESTS)
            gossip = await seconds_for(lambda: client.request(url, "/gossip/digest", DIGEST), REQUESTS)
            found.append(gossip / empty)
            spent.append(gossip)
    return statistics.median(found), statistics.median(spent) * 1e3


async def page_ms(url: str) -> float:
    """Milliseconds to send a page of a megabyte and get it back."""
    async with GossipClient(SECRET, "a" * 16) as client:
        return await seconds_for(lambda: client.request(url, "/gossip/objects", PAGE), 20) * 1e3


class Relay:
    """Passes bytes between a client and the server and counts them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.passed = 0

    async def run(self, client: anyio.abc.SocketStream) -> None:
        server = await anyio.connect_tcp("127.0.0.1", self._port)
        async with client, server, anyio.create_task_group() as group:
            group.start_soon(self._pass_on, client, server)
            await self._pass_on(server, client)
            group.cancel_scope.cancel()

    async def _pass_on(self, source: anyio.abc.SocketStream, target: anyio.abc.SocketStream) -> None:
        async for data in source:
            self.passed += len(data)
            await target.send(data)


async def bytes_per_exchange(port: int) -> float:
    """All bytes of an exchange in both directions, headers included, once the replicas know each other."""
    relay = Relay(port)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    relayed = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
    async with anyio.create_task_group() as group, GossipClient(SECRET, "a" * 16) as client:
        group.start_soon(listener.serve, relay.run)
        await client.request(relayed, "/gossip/digest", DIGEST)
        before = relay.passed
        for _ in range(10):
            await client.request(relayed, "/gossip/digest", DIGEST)
        counted = (relay.passed - before) / 10
        group.cancel_scope.cancel()
    return counted


def line(name: str, value: float, limit: str, ok: bool) -> None:
    print(f"{name:<58}{value:>10.2f}  {limit:<12}{'ok' if ok else 'over'}")


async def main() -> None:
    endpoint = GossipEndpoint(SECRET, "b" * 16, "instance", same)
    async with anyio.create_task_group() as group:
        port = await group.start(serve, endpoint, "127.0.0.1", 0)
        empty_port = await group.start(serve, empty_app, "127.0.0.1", 0)
        found, spent_ms = await ratio(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{empty_port}/")
        line("idle exchange of 100 bytes / empty httpx request", found, "< 3 x", found < 3)
        line("the same in milliseconds", spent_ms, "-", True)
        size = await bytes_per_exchange(port)
        line("bytes of an idle exchange, headers included", size, "< 1024", size < 1024)
        line(
            f"{len(PAGE) / 1e6:.1f} MB there and back, ms",
            await page_ms(f"http://127.0.0.1:{port}"),
            "-",
            True,
        )
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
