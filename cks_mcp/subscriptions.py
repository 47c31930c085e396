"""Telling clients that a resource changed: both generations of the protocol, from any task, without waiting.

Clients of protocol 2026-07-28 hold a `subscriptions/listen` stream, which the SDK serves from a bus; older ones call
`resources/subscribe` and get notifications on their connection. An update says only "read it again", so many
updates of one resource are sent as one and a lost client loses nothing it cannot read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from weakref import WeakKeyDictionary

import anyio
from anyio.abc import TaskGroup
from mcp.server.connection import Connection
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ResourceUpdated

log = logging.getLogger(__name__)

WAITING_MAX = 4096
"""Changed resources not yet told: beyond it the oldest is forgotten and counted."""
URIS_MAX = 1024
"""Resources one older client may subscribe to."""
SEND_TIMEOUT_S = 10.0


class _Subscriber:
    """An older client: what it subscribed to and what it is still to be told."""

    def __init__(self) -> None:
        self.uris: set[str] = set()
        self.waiting: dict[str, None] = {}
        self.busy = False


class ResourceUpdates:
    """`touch` from anywhere in the event loop; `run` sends until it is cancelled."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.dropped = 0
        self._waiting: dict[str, None] = {}
        self._wake = anyio.Event()
        self._older: WeakKeyDictionary[Connection, _Subscriber] = WeakKeyDictionary()

    def touch(self, *uris: str) -> None:
        """The resources at these URIs changed. Never waits and never raises."""
        for uri in uris:
            self._waiting[uri] = None
        while len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
            self.dropped += 1
        self._wake.set()

    def subscribe(self, session: ServerSession, uri: str) -> bool:
        """An older client wants updates of `uri`; False when it has too many subscriptions already."""
        subscriber = self._older.setdefault(_connection(session), _Subscriber())
        if len(subscriber.uris) >= URIS_MAX and uri not in subscriber.uris:
            return False
        subscriber.uris.add(uri)
        return True

    def unsubscribe(self, session: ServerSession, uri: str) -> None:
        """An older client wants no more updates of `uri`; nothing happens where it had none."""
        subscriber = self._older.get(_connection(session))
        if subscriber is not None:
            subscriber.uris.discard(uri)

    async def run(self) -> None:
        """Send updates, in the order of their first touch, until cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                await self._wake.wait()
                self._wake = anyio.Event()
                uris, self._waiting = list(self._waiting), {}
                self._tell_older(uris, tasks)
                for uri in uris:
                    await self.bus.publish(ResourceUpdated(uri))

    def _tell_older(self, uris: Iterable[str], tasks: TaskGroup) -> None:
        for connection, subscriber in list(self._older.items()):
            subscriber.waiting.update((uri, None) for uri in uris if uri in subscriber.uris)
            if subscriber.waiting and not subscriber.busy:
                subscriber.busy = True
                tasks.start_soon(self._send, connection, subscriber)

    async def _send(self, connection: Connection, subscriber: _Subscriber) -> None:
        # One task a client, so that one which stopped reading holds up nobody else.
        try:
            while subscriber.waiting:
                uri = next(iter(subscriber.waiting))
                del subscriber.waiting[uri]
                with anyio.fail_after(SEND_TIMEOUT_S):
                    await connection.send_resource_updated(uri)
        except TimeoutError:
            subscriber.waiting.clear()
            log.info("a client does not read its resource updates")
        except Exception:
            # Whatever is wrong with one connection, the others are still to be told.
            subscriber.waiting.clear()
            log.exception("resource updates could not be sent")
        finally:
            subscriber.busy = False


def _connection(session: ServerSession) -> Connection:
    # A session object lives for one request only; what lasts as long as the client is the connection behind it,
    # which the SDK offers under no public name.
    connection: Connection = session._connection
    return connection
