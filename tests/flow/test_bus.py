"""The bus: order, bounds, isolation of subscribers, and nothing lost to cancellation."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Iterator

import anyio
import pytest
import structlog
from anyio.lowlevel import checkpoint
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.flow.bus import TURN, EventBus, Overflow, Subscription
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


def moved(seq: int) -> HeadMoved:
    return HeadMoved(version_id="aa", previous_id="bb", seq=seq)


def created(seq: int) -> SessionCreated:
    return SessionCreated(version_id="aa", seq=seq)


def taken(subscription: Subscription) -> list[int]:
    found = []
    while len(subscription):
        found.append(subscription.receive_nowait().seq)
    return found


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
    spent: list[float] = []

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
            before = time.perf_counter()
            bus.publish(batch)
            spent.append(time.perf_counter() - before)
            while min(map(len, good)) < start + 100 or len(failing):
                await checkpoint()
        stats = {each.name: each for each in bus.stats()}
        group.cancel_scope.cancel()
    assert good == [list(range(total))] * 2
    assert stats["failing"].failures == stats["failing"].delivered == total
    assert stats["sleeping"].delivered == 1
    assert stats["sleeping"].dropped == total - 101
    assert sleeping.capacity == stats["sleeping"].queued == 100
    # A median: what publishing waits, not what else this machine was doing at one of the moments.
    assert sorted(spent)[len(spent) // 2] < 0.001
    assert len(logged) == total
    assert logged[0]["subscriber"] == "failing"
    assert logged[0]["error"] == "ValueError(0)"
    with_traceback = [entry["failures"] for entry in logged if entry["exc_info"]]
    assert with_traceback == [2**power for power in range(14)]


async def test_a_batch_wakes_a_waiting_reader_once() -> None:
    bus = EventBus()
    batches: list[list[int]] = []
    subscription = bus.subscribe()

    async def read() -> None:
        while True:
            batches.append([event.seq for event in await subscription.receive_batch()])

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        bus.publish([moved(seq) for seq in range(200)])
        bus.publish(moved(200))
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert batches == [list(range(201))]


async def test_a_batch_is_at_most_what_was_asked_for() -> None:
    bus = EventBus()
    subscription = bus.subscribe()
    bus.publish([moved(seq) for seq in range(5)])
    assert [event.seq for event in await subscription.receive_batch(max=2)] == [0, 1]
    assert [event.seq for event in await subscription.receive_batch(max=5)] == [2, 3, 4]
    with pytest.raises(ValueError, match="at least 1"):
        await subscription.receive_batch(max=0)


@pytest.mark.parametrize("seed", range(20))
async def test_readers_cancelled_at_any_point_lose_nothing(seed: int) -> None:
    """Readers of one subscription come and go at random; each event reaches exactly one of them."""
    rng = random.Random(seed)
    bus = EventBus()
    subscription = bus.subscribe(capacity=10_000)
    got: list[int] = []
    total = 600

    async def read(scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                match rng.randrange(3):
                    case 0:
                        got.append((await subscription.receive()).seq)
                    case 1:
                        got.extend(event.seq for event in await subscription.receive_batch(rng.randint(1, 5)))
                    case _:
                        async for event in subscription:
                            got.append(event.seq)
                            if rng.random() < 0.3:
                                break

    async with anyio.create_task_group() as group:
        scopes: list[anyio.CancelScope] = []
        seq = 0
        while seq < total:
            for _ in range(rng.randint(0, 3)):
                scopes.append(anyio.CancelScope())
                group.start_soon(read, scopes[-1])
            size = min(rng.randint(1, 4), total - seq)
            bus.publish([moved(seq + index) for index in range(size)])
            seq += size
            for _ in range(rng.randint(0, 3)):
                await checkpoint()
            while scopes and rng.random() < 0.6:
                scopes.pop(rng.randrange(len(scopes))).cancel()
        for scope in scopes:
            scope.cancel()
    got += taken(subscription)
    assert sorted(got) == list(range(total))
    assert subscription.delivered == total
    assert subscription.dropped == 0


@pytest.mark.parametrize("steps", range(6))
async def test_a_reader_cancelled_between_wake_up_and_resume_leaves_the_event(steps: int) -> None:
    bus = EventBus()
    subscription = bus.subscribe()
    got: list[Event] = []

    async def read() -> None:
        got.append(await subscription.receive())

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        for _ in range(steps):
            await checkpoint()
        bus.publish(moved(1))
        group.cancel_scope.cancel()
    assert [event.seq for event in got] + taken(subscription) == [1]


async def test_closing_while_readers_wait_ends_all_of_them() -> None:
    bus = EventBus()
    subscription = bus.subscribe()
    ended: list[str] = []

    async def iterate() -> None:
        async for _event in subscription:
            pass
        ended.append("iterate")

    async def receive() -> None:
        with pytest.raises(anyio.EndOfStream):
            await subscription.receive()
        ended.append("receive")

    async def receive_batch() -> None:
        with pytest.raises(anyio.EndOfStream):
            await subscription.receive_batch()
        ended.append("batch")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            for reader in (iterate, receive, receive_batch):
                group.start_soon(reader)
            await anyio.wait_all_tasks_blocked()
            subscription.close()
    assert sorted(ended) == ["batch", "iterate", "receive"]
    assert bus.stats() == []


async def test_what_was_queued_before_closing_is_still_read() -> None:
    bus = EventBus()
    subscription = bus.subscribe()
    bus.publish([moved(1), moved(2)])
    subscription.close()
    subscription.close()
    bus.publish(moved(3))
    assert [event.seq async for event in subscription] == [1, 2]
    with pytest.raises(anyio.EndOfStream):
        subscription.receive_nowait()


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


async def test_a_full_queue_gives_other_tasks_their_turn() -> None:
    bus = EventBus()
    subscription = bus.subscribe()
    bus.publish([moved(seq) for seq in range(1000)])
    subscription.close()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        async for _event in subscription:
            pass
        group.cancel_scope.cancel()
    assert turns >= 1000 // TURN


async def test_nowait_tells_empty_from_ended() -> None:
    bus = EventBus()
    async with bus.subscribe() as subscription:
        with pytest.raises(anyio.WouldBlock):
            subscription.receive_nowait()
    with pytest.raises(anyio.EndOfStream):
        subscription.receive_nowait()


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
