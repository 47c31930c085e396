"""Reading from the bus: wake-ups, cancellation, closing, turns."""

from __future__ import annotations

import random

import anyio
import pytest
from anyio.lowlevel import checkpoint
from bus_building import moved, taken

from cks_runtime.flow.bus import TURN, EventBus
from cks_runtime.model.events import Event


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
