"""The event bus: the live tail of the journal, handed to bounded subscriptions that cannot hurt others."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from cks_runtime.model.events import Event

Overflow = Literal["drop_oldest", "drop_newest"]
E = TypeVar("E", bound=Event)

CAPACITY = 1024
TURN = 64  # Events a reader may take without a checkpoint: long enough to be cheap, short enough to be fair.

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SubscriberStats:
    """Counters of one subscription; `queued` is now, the others since it was made."""

    name: str
    queued: int
    capacity: int
    delivered: int
    dropped: int
    failures: int


class Subscription:
    """A bounded stream of events, in the order in which they were published.

    What does not fit into `capacity` is dropped by the policy named in the call and counted in `dropped`; a
    reader that must miss nothing compares `dropped` and replays the journal after the last `seq` it saw.
    An event leaves the queue in the same step in which it is returned, so cancelling a reader loses nothing.
    Several tasks may read one subscription: each event goes to one of them.
    """

    __slots__ = (
        "_bus",
        "_closed",
        "_queue",
        "_wake",
        "capacity",
        "delivered",
        "dropped",
        "failures",
        "kinds",
        "name",
        "on_overflow",
    )

    def __init__(
        self, bus: EventBus, kinds: tuple[type[Event], ...], capacity: int, on_overflow: Overflow, name: str
    ) -> None:
        self._bus = bus
        self._closed = False
        self._queue: deque[Event] = deque(maxlen=capacity)
        self._wake: anyio.Event | None = None
        self.capacity = capacity
        self.delivered = 0
        self.dropped = 0
        self.failures = 0
        self.kinds = kinds
        self.name = name
        self.on_overflow = on_overflow

    def __len__(self) -> int:
        return len(self._queue)

    def __bool__(self) -> bool:
        return True

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        if not self._queue or self.delivered % TURN == 0:
            try:
                await self._ready()
            except anyio.EndOfStream:
                raise StopAsyncIteration from None
        self.delivered += 1
        return self._queue.popleft()

    async def receive(self) -> Event:
        """The oldest queued event; waits for one. Raises anyio.EndOfStream once closed and read out."""
        if not self._queue or self.delivered % TURN == 0:
            await self._ready()
        self.delivered += 1
        return self._queue.popleft()

    async def receive_batch(self, max: int = CAPACITY) -> list[Event]:
        """At least one and at most `max` events; waits for the first. Raises as `receive` does."""
        if max < 1:
            raise ValueError(f"max must be at least 1, not {max}")
        await self._ready()
        if len(self._queue) <= max:
            batch = list(self._queue)
            self._queue.clear()
        else:
            batch = [self._queue.popleft() for _ in range(max)]
        self.delivered += len(batch)
        return batch

    def receive_nowait(self) -> Event:
        """The oldest queued event. Raises anyio.WouldBlock while there is none, EndOfStream once closed."""
        if not self._queue:
            raise anyio.EndOfStream if self._closed else anyio.WouldBlock
        self.delivered += 1
        return self._queue.popleft()

    def close(self) -> None:
        """Take no further events. Those already queued can still be read; waiting readers end."""
        if not self._closed:
            self._closed = True
            self._bus._forget(self)
            self._notify()

    def stats(self) -> SubscriberStats:
        return SubscriberStats(
            self.name, len(self._queue), self.capacity, self.delivered, self.dropped, self.failures
        )

    async def _ready(self) -> None:
        """Return with the queue not empty, after at least one checkpoint.

        The checkpoint comes first even when there is nothing: under a steady trickle the next event is there
        after it, and the costlier wake-up is not needed.
        """
        await checkpoint()
        while not self._queue:
            if self._closed:
                raise anyio.EndOfStream
            if self._wake is None:
                self._wake = anyio.Event()
            await self._wake.wait()

    def _offer_one(self, event: Event) -> None:
        if len(self._queue) < self.capacity:
            self._queue.append(event)
            if self._wake is not None:
                self._notify()
        else:
            self._offer((event,))

    def _offer(self, events: Sequence[Event]) -> None:
        room = self.capacity - len(self._queue)
        if len(events) <= room:
            self._queue.extend(events)
        else:
            self.dropped += len(events) - room
            # The deque's own bound discards from the left, which is exactly drop_oldest.
            self._queue.extend(events if self.on_overflow == "drop_oldest" else islice(events, room))
        self._notify()

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None


class EventBus:
    """Hands published events to every subscription that asked for their kind. One event loop, one thread."""

    def __init__(self) -> None:
        self._subscriptions: tuple[Subscription, ...] = ()
        self._routes: dict[type[Event], tuple[Subscription, ...]] = {}
        self._made = 0
        self._closed = False

    def publish(self, events: Sequence[Event] | Event) -> None:
        """Queue events for every subscription that wants them and wake each once.

        Never waits, never runs a subscriber's code and never raises because of one.
        """
        if isinstance(events, Event):
            for subscription in self._route(type(events)):
                subscription._offer_one(events)
            return
        for subscription in self._subscriptions:
            kinds = subscription.kinds
            wanted = [event for event in events if isinstance(event, kinds)] if kinds else events
            if wanted:
                subscription._offer(wanted)

    def subscribe(
        self,
        *kinds: type[Event],
        capacity: int = CAPACITY,
        on_overflow: Overflow = "drop_oldest",
        name: str = "",
    ) -> Subscription:
        """A stream of the events of these kinds and their subclasses (none named: all) from now on.

        It holds at most `capacity` events; beyond that the oldest queued or the newest published are dropped
        and counted. Raises ValueError for a capacity below 1, anyio.ClosedResourceError on a closed bus.
        """
        if self._closed:
            raise anyio.ClosedResourceError
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        if on_overflow not in ("drop_oldest", "drop_newest"):
            raise ValueError(f"on_overflow must be 'drop_oldest' or 'drop_newest', not {on_overflow!r}")
        self._made += 1
        label = name or f"subscriber-{self._made}"
        subscription = Subscription(self, kinds, capacity, on_overflow, label)
        self._subscriptions = (*self._subscriptions, subscription)
        self._routes.clear()
        return subscription

    def listen(
        self,
        task_group: TaskGroup,
        handler: Callable[[E], Awaitable[object]],
        *kinds: type[E],
        capacity: int = CAPACITY,
        on_overflow: Overflow = "drop_oldest",
        name: str = "",
    ) -> Subscription:
        """Run `handler` for each event in the task group, one at a time, until the subscription is closed.

        Subscribed before this returns. An exception of the handler is logged and counted in `failures`, and
        the next event follows; it never reaches the task group, the publisher or another subscriber.
        """
        label = name or getattr(handler, "__qualname__", "")
        subscription = self.subscribe(*kinds, capacity=capacity, on_overflow=on_overflow, name=label)
        task_group.start_soon(_serve, subscription, handler, name=f"listener {subscription.name}")
        return subscription

    def stats(self) -> list[SubscriberStats]:
        """Counters of the open subscriptions, in the order in which they were made."""
        return [subscription.stats() for subscription in self._subscriptions]

    def close(self) -> None:
        """Close every subscription; readers end after what is queued. Later publishing reaches nobody."""
        self._closed = True
        for subscription in self._subscriptions:
            subscription.close()

    def _route(self, kind: type[Event]) -> tuple[Subscription, ...]:
        route = self._routes.get(kind)
        if route is None:
            route = tuple(s for s in self._subscriptions if not s.kinds or issubclass(kind, s.kinds))
            self._routes[kind] = route
        return route

    def _forget(self, subscription: Subscription) -> None:
        self._subscriptions = tuple(s for s in self._subscriptions if s is not subscription)
        self._routes.clear()


async def _serve(subscription: Subscription, handler: Callable[[E], Awaitable[object]]) -> None:
    async with subscription:
        async for event in subscription:
            try:
                await handler(event)  # type: ignore[arg-type]  # `kinds` and `handler` share E in `listen`.
            except Exception as error:
                subscription.failures += 1
                _report(subscription, event, error)


def _report(subscription: Subscription, event: Event, error: Exception) -> None:
    """Log every failure in one line, the 1st, 2nd, 4th, 8th … with a traceback: a flood stays readable."""
    failures = subscription.failures
    log.error(
        "subscriber failed",
        subscriber=subscription.name,
        kind=event.kind,
        seq=event.seq,
        failures=failures,
        error=repr(error),
        exc_info=error if failures & (failures - 1) == 0 else None,
    )
