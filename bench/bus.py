"""How fast does the bus hand events to ten subscribers, against ten raw anyio memory object streams?"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Coroutine

import anyio
import structlog
from anyio.lowlevel import checkpoint

from bench.report import line
from cks_runtime.flow.bus import EventBus
from cks_runtime.model.events import Event, HeadMoved

SUBSCRIBERS = 10
ROUNDS = 9
BURST = 500
EVENTS = [HeadMoved(version_id="a" * 64, previous_id="b" * 64, seq=seq) for seq in range(20_000)]

Publish = Callable[[Event], None]
Read = Callable[[int], Coroutine[object, object, None]]


async def _drive(publish: Publish, seen: list[int], burst: int) -> None:
    """Publish all events in bursts; after each, let the readers take everything."""
    for start in range(0, len(EVENTS), burst):
        for event in EVENTS[start : start + burst]:
            publish(event)
        while min(seen) < min(start + burst, len(EVENTS)):
            await checkpoint()


async def through_bus(burst: int) -> float:
    """Seconds to bring every event to ten subscribers of one bus."""
    bus = EventBus()
    seen = [0] * SUBSCRIBERS

    async def read(index: int) -> None:
        async with bus.subscribe(capacity=BURST) as subscription:
            async for _event in subscription:
                seen[index] += 1

    return await _timed(read, bus.publish, seen, burst)


async def through_streams(burst: int) -> float:
    """Seconds to bring every event to ten raw streams, one `send_nowait` a stream and event."""
    pairs = [anyio.create_memory_object_stream[Event](BURST) for _ in range(SUBSCRIBERS)]
    seen = [0] * SUBSCRIBERS

    async def read(index: int) -> None:
        async with pairs[index][1] as stream:
            async for _event in stream:
                seen[index] += 1

    def publish(event: Event) -> None:
        for send, _receive in pairs:
            send.send_nowait(event)

    elapsed = await _timed(read, publish, seen, burst)
    for send, _receive in pairs:
        send.close()
    return elapsed


async def _timed(read: Read, publish: Publish, seen: list[int], burst: int) -> float:
    async with anyio.create_task_group() as group:
        for index in range(SUBSCRIBERS):
            group.start_soon(read, index)
        await anyio.wait_all_tasks_blocked()
        started = time.perf_counter()
        await _drive(publish, seen, burst)
        elapsed = time.perf_counter() - started
        group.cancel_scope.cancel()
    return elapsed


async def ratio(burst: int) -> float:
    """Median of the ratios of neighbouring runs, so that a slow moment of the machine hits both sides."""
    found = []
    for _ in range(ROUNDS):
        gc.collect()
        found.append(await through_streams(burst) / await through_bus(burst))
    return statistics.median(found)


async def slowest_publish_ms() -> float:
    """Milliseconds under which 99.9 % of 10,000 publishes stay while one subscriber raises and one sleeps."""
    bus = EventBus()
    spent = []
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    async with anyio.create_task_group() as group:
        bus.listen(group, _raise)
        bus.listen(group, _sleep)
        for event in EVENTS[:10_000]:
            started = time.perf_counter()
            bus.publish(event)
            spent.append(time.perf_counter() - started)
            await checkpoint()
        group.cancel_scope.cancel()
    return sorted(spent)[len(spent) * 999 // 1000] * 1e3


async def _raise(event: Event) -> None:
    raise ValueError(event.seq)


async def _sleep(event: Event) -> None:
    await anyio.sleep_forever()


def _rss_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def million_growth_mb() -> float:
    """Resident memory that a million events leave behind while one subscriber sleeps and nine read."""
    bus = EventBus()
    async with anyio.create_task_group() as group:
        bus.subscribe(name="asleep")
        for _ in range(SUBSCRIBERS - 1):
            bus.listen(group, _ignore)
        await anyio.wait_all_tasks_blocked()
        before = _rss_bytes()
        for seq in range(1_000_000):
            bus.publish(HeadMoved(version_id="a" * 64, previous_id="b" * 64, seq=seq))
            if seq % BURST == 0:
                await checkpoint()
        grown = _rss_bytes() - before
        bus.close()
    return grown / 1e6


async def _ignore(event: Event) -> None:
    pass


async def main() -> None:
    burst = await ratio(BURST)
    line("publish to 10 subscribers / 10 anyio streams, bursts of 500", burst, ">= 4 x", burst >= 4)
    single = await ratio(1)
    line("the same, readers woken for every single event", single, ">= 0.8 x", single >= 0.8)
    slowest = await slowest_publish_ms()
    line("99.9 % publish beside a failing and a sleeping one, ms", slowest, "< 1 ms", slowest < 1)
    grown = await million_growth_mb()
    line("resident memory after a million events", grown, "< 20 MB", grown < 20)


if __name__ == "__main__":
    anyio.run(main)
