"""Gossip's network: one client for all peers, and the endpoint on our own address, with one secret."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

import anyio

from cks_runtime.model.gossip_messages import OwnAddress
from cks_runtime.net.client import GossipClient
from cks_runtime.net.endpoint import GossipEndpoint, Handler
from cks_runtime.net.errors import PeerIsSelf
from cks_runtime.net.serve import serve


class HttpNetwork:
    """`async with HttpNetwork(secret, replica_id, host, port) as network`. Raises ValueError for a short secret.

    Port 0 takes any free one.
    """

    def __init__(self, secret: bytes, replica_id: str, host: str, port: int) -> None:
        self._secret = secret
        self._replica_id = replica_id
        self._host, self._port = host, port
        self._client = GossipClient(secret, replica_id)
        self._endpoint: GossipEndpoint | None = None

    async def __aenter__(self) -> HttpNetwork:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def request(self, address: str, path: str, body: bytes) -> bytes:
        """The peer's reply. Raises PeerError, and OwnAddress where the peer is this replica itself."""
        try:
            return await self._client.request(address, path, body)
        except PeerIsSelf as error:
            raise OwnAddress(f"{address} is this replica's own address") from error

    def traffic(self, address: str) -> tuple[int, int]:
        """Bytes sent to and received from this peer."""
        seen = self._client.traffic(address)
        return seen.bytes_sent, seen.bytes_received

    def refusals(self) -> Mapping[str, Any]:
        """Requests refused so far by status, and why the last one was."""
        if self._endpoint is None:
            return {}
        refused = self._endpoint.refusals
        return {
            "by_status": {str(status): n for status, n in refused.by_status.items()},
            "last": refused.last,
        }

    @asynccontextmanager
    async def listen(self, handler: Handler) -> AsyncIterator[str]:
        """Answer peers while the block runs; gives our address. Raises PortUnavailable."""
        # a fresh instance each time: the endpoint begins without the counters it has seen
        self._endpoint = GossipEndpoint(self._secret, self._replica_id, secrets.token_hex(8), handler)
        shown = f"[{self._host}]" if ":" in self._host else self._host
        try:
            async with anyio.create_task_group() as tasks:
                port = await tasks.start(serve, self._endpoint, self._host, self._port)
                try:
                    yield f"http://{shown}:{port}"
                finally:
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from group.exceptions[0].__cause__
            raise
