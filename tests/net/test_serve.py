"""The server in a task group: ports, stopping, slow heads, and floods of connections."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.abc
import pytest
import structlog
from net_building import PATH, client, receiver, send_raw

from cks_runtime.net import serve as serving
from cks_runtime.net.errors import PeerUnreachable, PortUnavailable
from cks_runtime.net.serve import serve


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


async def test_a_taken_port_is_an_error_that_goes_away() -> None:
    async with receiver() as first:
        async with anyio.create_task_group() as group:
            with pytest.raises(PortUnavailable, match=f"cannot listen on 127.0.0.1:{first.port}: ") as caught:
                await group.start(serve, first.endpoint, "127.0.0.1", first.port)
            assert "CKS_GOSSIP_PORT" in caught.value.hint
        async with client() as asking:
            assert await asking.request(first.url, PATH, b"x") == b"<x>"
    async with receiver(first.port) as again:
        assert again.port == first.port


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 70000), ("192.0.2.1", 0), ("no.such.host.invalid", 0), ("a" * 80, 0)]
)
async def test_an_address_that_cannot_be_bound_is_an_error(host: str, port: int) -> None:
    async with anyio.create_task_group() as group:
        with pytest.raises(PortUnavailable, match="cannot listen"):
            await group.start(serve, None, host, port)


async def test_signals_stay_whose_they_were() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    async with receiver():
        assert {number: signal.getsignal(number) for number in before} == before


async def test_nothing_is_printed_or_logged(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0, "uvicorn")
    caplog.set_level(0, "cks_runtime")
    async with receiver() as peer, client() as asking:
        await asking.request(peer.url, PATH, b"x")
        await send_raw(peer.port, b"no http\r\n\r\n")
        upgrade = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        assert (await send_raw(peer.port, upgrade)).status == 401
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


async def test_a_running_answer_is_finished_before_the_stop() -> None:
    started, answers = anyio.Event(), []

    async def slow(path: str, body: bytes, sender: str) -> bytes:
        started.set()
        await anyio.sleep(0.3)
        return body

    async def ask(url: str) -> None:
        async with client() as asking:
            answers.append(await asking.request(url, PATH, b"x"))

    async with anyio.create_task_group() as group, receiver(handler=slow) as peer:
        group.start_soon(ask, peer.url)
        await started.wait()
    assert answers == [b"x"]


async def test_the_stop_takes_two_seconds_at_most() -> None:
    started = anyio.Event()

    async def hang(path: str, body: bytes, sender: str) -> bytes:
        started.set()
        await anyio.sleep_forever()
        return b""

    async def ask(url: str) -> None:
        async with client() as asking:
            with pytest.raises(PeerUnreachable):
                await asking.request(url, PATH, b"x")

    async with anyio.create_task_group() as group, AsyncExitStack() as idle:
        async with receiver(handler=hang) as peer:
            group.start_soon(ask, peer.url)
            await started.wait()
            for _ in range(5):
                stream = await idle.enter_async_context(await anyio.connect_tcp("127.0.0.1", peer.port))
                await stream.send(b"POST /gossip/x HTTP/1.1\r\n")
            stopping = time.monotonic()
        assert time.monotonic() - stopping < 2
    async with receiver(peer.port):
        pass


async def closed(stream: anyio.abc.SocketStream) -> bool:
    try:
        return await stream.receive() == b""
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return True


@pytest.mark.parametrize("sent", [b"", b"POST /gossip/x HT", b"POST / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_head_that_does_not_come_is_not_waited_for(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.2)
    async with receiver() as peer, await anyio.connect_tcp("127.0.0.1", peer.port) as stream:
        if sent:
            await stream.send(sent)
        with anyio.fail_after(2):
            assert await closed(stream)


async def test_a_head_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 0.3)

    async def drip(stream: anyio.abc.SocketStream) -> None:
        while True:
            await stream.send(b"x")
            await anyio.sleep(0.02)

    async with (
        receiver() as peer,
        await anyio.connect_tcp("127.0.0.1", peer.port) as stream,
        anyio.create_task_group() as group,
    ):
        group.start_soon(drip, stream)
        with anyio.fail_after(2):
            assert await closed(stream)
        group.cancel_scope.cancel()


async def test_a_huge_head_is_refused() -> None:
    async with receiver() as peer:
        head = b"POST / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 100_000 + b"\r\n\r\n"
        assert (await send_raw(peer.port, head)).status in (400, 401)


async def test_a_flood_of_connections_does_not_keep_peers_out() -> None:
    async with receiver() as peer, client() as asking, AsyncExitStack() as flood:
        await asking.request(peer.url, PATH, b"x")
        for _ in range(serving.CONNECTIONS_MAX + 50):
            await flood.enter_async_context(await anyio.connect_tcp("127.0.0.1", peer.port))
        async with client(replica_id="c" * 16) as other:
            assert await other.request(peer.url, PATH, b"x") == b"<x>"
        before = asking.traffic(peer.url).requests
        assert await asking.request(peer.url, PATH, b"x") == b"<x>"
        assert asking.traffic(peer.url).requests == before + 1, "the peer's own connection was kept"


async def test_descriptors_and_tasks_are_given_back() -> None:
    async def once() -> Any:
        async with receiver() as peer, client() as asking:
            for _ in range(5):
                await asking.request(peer.url, PATH, b"x")
                await send_raw(peer.port, b"x\r\n\r\n")

    await once()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        await once()
    await anyio.sleep(0.05)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
