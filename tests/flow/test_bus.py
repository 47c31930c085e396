"""Publishing on the bus: order, kinds, bounds, and subscribers that cannot harm each other."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint
from bus_building import created, moved, taken
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.flow.bus import EventBus, Overflow, Subscription
from cks_runtime.model.events import (
    ConflictRaised,
    Event,
    GossipConflictDetected,
    HeadMoved,
    InferenceConflictDetected,
    SessionCreated,
    UnknownEvent,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def test_every_subscriber_gets_the_published_order_whatever_the_batching() -> None:
    bus = EventBus()
    subscriptions = [bus.subscribe() for _ in range(3)]
    bus.publish([moved(1), created(2)])
    bus.publish(moved(3))
    bus.publish([])
    bus.publish((created(4), moved(5)))
    assert [taken(each) for each in subscriptions] == [[1, 2, 3, 4, 5]] * 3


def test_kinds_filter_by_class_and_subclass_alone_and_in_batches() -> None:
    bus = EventBus()
    heads, raised, both, everything = (
        bus.subscribe(HeadMoved),
        bus.subscribe(ConflictRaised),
        bus.subscribe(HeadMoved, SessionCreated),
        bus.subscribe(),
    )
    events: list[Event] = [
        moved(1),
        GossipConflictDetected(record_id="r", seq=2),
        created(3),
        InferenceConflictDetected(record_id="r", seq=4),
        UnknownEvent(kind="FromTheFuture", seq=5),
    ]
    for repeat in range(2):
        if repeat:
            for event in events:
                bus.publish(event)
        else:
            bus.publish(events)
        assert taken(heads) == [1]
        assert taken(raised) == [2, 4]
        assert taken(both) == [1, 3]
        assert taken(everything) == [1, 2, 3, 4, 5]


@given(
    batches=st.lists(st.integers(0, 30), max_size=12),
    capacity=st.integers(1, 20),
    policy=st.sampled_from(["drop_oldest", "drop_newest"]),
    reads=st.randoms(use_true_random=False),
)
def test_overflow_drops_by_the_named_policy_and_counts(
    batches: list[int], capacity: int, policy: Overflow, reads: random.Random
) -> None:
    bus = EventBus()
    subscription = bus.subscribe(capacity=capacity, on_overflow=policy)
    model: list[int] = []
    seq = dropped = delivered = 0
    for size in batches:
        batch = [moved(seq + 1 + index) for index in range(size)]
        seq += size
        bus.publish(batch[0] if size == 1 else batch)
        model += [event.seq for event in batch]
        over = max(0, len(model) - capacity)
        dropped += over
        if over:
            model = model[over:] if policy == "drop_oldest" else model[:capacity]
        for _ in range(min(len(model), reads.randint(0, 5))):
            assert subscription.receive_nowait().seq == model.pop(0)
            delivered += 1
    stats = subscription.stats()
    assert (stats.dropped, stats.delivered, stats.queued) == (dropped, delivered, len(model))
    assert stats.dropped + stats.delivered + stats.queued == seq
    assert taken(subscription) == model


async def test_one_that_raises_and_one_that_sleeps_harm_nobody(
    logged: list[structlog.typing.EventDict],
) -> None:
    bus = EventBus()
    total = 10_000
    good: list[list[int]] = [[], []]

    async def fail(event: HeadMoved) -> None:
        raise ValueError(event.seq)

    async def sleep(event: HeadMoved) -> None:
        await anyio.sleep_forever()

    async def keep_first(event: HeadMoved) -> None:
        good[0].append(event.seq)

    async def keep_second(event: HeadMoved) -> None:
        await checkpoint()
        good[1].append(event.seq)

    async with anyio.create_task_group() as group:
        failing = bus.listen(group, fail, HeadMoved, name="failing")
        sleeping = bus.listen(group, sleep, HeadMoved, capacity=100, name="sleeping")
        for handler in (keep_first, keep_second):
            bus.listen(group, handler, HeadMoved)
        for start in range(0, total, 100):
            batch = [moved(seq) for seq in range(start, start + 100)]
            bus.publish(batch)
            while min(map(len, good)) < start + 100 or len(failing):
                await checkpoint()
        stats = {each.name: each for each in bus.stats()}
        group.cancel_scope.cancel()
    assert good == [list(range(total))] * 2
    assert stats["failing"].failures == stats["failing"].delivered == total
    assert stats["sleeping"].delivered == 1
    assert stats["sleeping"].dropped == total - 101
    assert sleeping.capacity == stats["sleeping"].queued == 100
    assert len(logged) == total
    assert logged[0]["subscriber"] == "failing"
    assert logged[0]["error"] == "ValueError(0)"
    with_traceback = [entry["failures"] for entry in logged if entry["exc_info"]]
    assert with_traceback == [2**power for power in range(14)]


async def test_closing_the_bus_lets_listeners_finish() -> None:
    bus = EventBus()
    seen: list[int] = []

    async def keep(event: Event) -> None:
        seen.append(event.seq)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            bus.listen(group, keep)
            bus.publish([moved(1), moved(2)])
            bus.close()
    assert seen == [1, 2]
    bus.publish(moved(3))
    with pytest.raises(anyio.ClosedResourceError):
        bus.subscribe()


async def test_a_listener_hears_what_is_published_before_its_task_runs() -> None:
    bus = EventBus()
    seen: list[int] = []

    async def keep(event: Event) -> None:
        seen.append(event.seq)

    async with anyio.create_task_group() as group:
        bus.listen(group, keep)
        bus.publish(moved(1))
        assert [each.name for each in bus.stats()] == [keep.__qualname__]
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert seen == [1]
    assert bus.stats() == []


async def test_a_handler_may_publish_subscribe_and_close() -> None:
    bus = EventBus()
    order: list[int] = []
    late: list[Subscription] = []

    async def answer(event: HeadMoved) -> None:
        order.append(event.seq)
        if event.seq < 5:
            bus.publish([moved(event.seq + 1), created(event.seq)])
        if event.seq == 2:
            late.append(bus.subscribe(HeadMoved))
        if event.seq == 4:
            other.close()

    other = bus.subscribe(SessionCreated)
    async with anyio.create_task_group() as group:
        bus.listen(group, answer, HeadMoved)
        bus.publish(moved(1))
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert order == [1, 2, 3, 4, 5]
    assert taken(late[0]) == [4, 5]
    assert taken(other) == [1, 2, 3, 4]


async def test_a_handler_that_feeds_itself_forever_does_not_stop_the_loop() -> None:
    bus = EventBus()

    async def again(event: Event) -> None:
        bus.publish(event)

    with anyio.move_on_after(0.05) as scope:
        async with anyio.create_task_group() as group:
            bus.listen(group, again)
            bus.publish(moved(1))
    assert scope.cancelled_caught


async def test_memory_stays_bounded_however_much_is_published() -> None:
    """The fast size of a million events: what is held follows the capacities, not what was published."""
    bus = EventBus()

    async def ignore(event: Event) -> None:
        pass

    async with anyio.create_task_group() as group:
        asleep = bus.subscribe(capacity=500)
        for _ in range(3):
            bus.listen(group, ignore, capacity=500)

        async def publish(total: int) -> None:
            for seq in range(total):
                bus.publish(moved(seq))
                if seq % 400 == 0:
                    await checkpoint()

        await publish(2_000)
        tracemalloc.start()
        await publish(2_000)
        before, _peak = tracemalloc.get_traced_memory()
        await publish(60_000)
        after, _peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        group.cancel_scope.cancel()
    assert asleep.dropped == 64_000 - 500
    assert after - before < 500_000


def test_subscribe_refuses_what_makes_no_sense() -> None:
    bus = EventBus()
    with pytest.raises(ValueError, match="capacity must be at least 1, not 0"):
        bus.subscribe(capacity=0)
    with pytest.raises(ValueError, match="'block'"):
        bus.subscribe(on_overflow="block")  # type: ignore[arg-type]
