"""Serves an ASGI app on a port inside a task group: uvicorn's HTTP, without its signals, logs, polling and exits."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import anyio
import h11
from anyio.abc import TaskStatus
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cks_runtime.net.errors import PortUnavailable

CONNECTIONS_MAX: Final = 200
"""A peer keeps one or a few; more would use up the descriptors that the database needs."""
HEAD_S: Final = 10.0
HEAD_BYTES_MAX: Final = 16 * 1024
KEEP_ALIVE_S: Final = 75
"""Longer than clients keep theirs, so that a request does not meet a connection that is being closed."""
STOP_S: Final = 1.5

_silent = logging.getLogger("cks_runtime.net.http")
_silent.disabled = True


async def serve(
    app: Any, host: str, port: int, *, task_status: TaskStatus[int] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Serve until cancelled; `task_group.start` returns the bound port. Stops within 2 seconds.

    Port 0 takes any free one. Raises PortUnavailable when the address cannot be bound.
    """
    config = Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
    )
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(lambda: _Connection(config, state, {}), host, port)
    except (OSError, OverflowError, UnicodeError) as error:
        raise PortUnavailable(
            f"gossip cannot listen on {host}:{port}: {error}",
            "another program may use the port; free it or set CKS_GOSSIP_HOST and CKS_GOSSIP_PORT",
        ) from error
    try:
        task_status.started(server.sockets[0].getsockname()[1])
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await _stop(server, state)


async def _stop(server: asyncio.Server, state: ServerState) -> None:
    """Close idle connections, let running answers end for a while, then break off the rest."""
    server.close()
    for connection in list(state.connections):
        try:
            connection.shutdown()
        except h11.LocalProtocolError:
            connection.transport.abort()
    if state.tasks:
        await asyncio.wait(set(state.tasks), timeout=STOP_S)
    # cut first: a cancelled answer would otherwise still be sent, as a 500
    for connection in list(state.connections):
        connection.transport.abort()
    for task in set(state.tasks):
        task.cancel()
    if state.tasks:
        await asyncio.wait(set(state.tasks), timeout=0.3)


class _Connection(H11Protocol):
    """One connection, which must bring the head of each request in time; too many idle ones make room."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _silent
        self.access_log = False
        self._head_timer: asyncio.TimerHandle | None = None
        self._standing = (False, self.loop.time())  # whether it was of use already, and its last event

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.waiting:
            self._head_came()
        elif self._head_timer is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        self._standing = (True, self.loop.time())
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    @property
    def waiting(self) -> bool:
        """Whether no request is under way."""
        return self.conn.their_state is h11.IDLE

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self.transport.abort)

    def _head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _make_room(self) -> None:
        """Drop a connection without a request under way: first those that never had one, longest wait first."""
        open_ones = [other for other in self.connections if not other.transport.is_closing()]
        if len(open_ones) <= CONNECTIONS_MAX:
            return
        idle = [other for other in open_ones if isinstance(other, _Connection) and other.waiting]
        min(idle, key=lambda other: other._standing, default=self).transport.abort()
