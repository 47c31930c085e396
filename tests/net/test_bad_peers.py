"""Asking what is no sound replica: every answer becomes one typed error, in time and within bounds."""

from __future__ import annotations

import gzip
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import httpx
import pytest
from net_building import PATH, RECEIVER, SECRET, client, receiver

from cks_runtime.net.client import ClientLimits, GossipClient
from cks_runtime.net.errors import PeerError, PeerGarbage, PeerRefused, PeerUnreachable, WrongSecret
from cks_runtime.net.signing import Keys, open_request, seal_reply

KEYS = Keys.of(SECRET)
QUICK = ClientLimits(connect_s=0.5, read_s=0.2, total_s=0.6, body_bytes=100_000)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def raw_peer(talk: Callable[[anyio.abc.SocketStream], Awaitable[None]]) -> AsyncIterator[str]:
    """A listener that reads a request's first bytes and then does as `talk` says."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                await stream.receive()
                await talk(stream)
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                pass

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}"
        group.cancel_scope.cancel()


async def ask_raw(talk: Callable[[anyio.abc.SocketStream], Awaitable[None]]) -> PeerError:
    async with raw_peer(talk) as url, client(limits=QUICK) as asking:
        with pytest.raises(PeerError) as caught:
            await asking.request(url, PATH, b"x")
    assert str(caught.value).startswith(f"peer {url} ")
    return caught.value


def says(data: bytes) -> Callable[[anyio.abc.SocketStream], Awaitable[None]]:
    async def talk(stream: anyio.abc.SocketStream) -> None:
        await stream.send(data)

    return talk


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"\x00\xff" * 100,
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncks-reply: \xff\xfe\r\ncontent-encoding: \xe4\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 407 Proxy\r\ncontent-length: 0\r\n\r\n",
        b'HTTP/1.1 409 Conflict\r\ncontent-length: 34\r\n\r\n{"code":"replayed","receiver":"a"}',
        b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\noops",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_replica_is_garbage(data: bytes) -> None:
    assert type(await ask_raw(says(data))) is PeerGarbage


async def test_an_unsigned_refusal_is_believed_only_as_far_as_its_status() -> None:
    found = await ask_raw(says(b"HTTP/1.1 401 No\r\ncontent-length: 8\r\n\r\nDo evil!"))
    assert type(found) is WrongSecret
    assert "evil" not in str(found) + found.hint
    found = await ask_raw(says(b"HTTP/1.1 413 No\r\ncontent-length: 8\r\n\r\nDo evil!"))
    assert isinstance(found, PeerRefused)
    assert "evil" not in str(found) + found.hint


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nhel"])
async def test_a_connection_broken_off_is_unreachable(data: bytes) -> None:
    found = await ask_raw(says(data) if data else anyio.abc.SocketStream.aclose)
    assert type(found) is PeerUnreachable
    assert "broke the connection off" in str(found)


async def test_an_endless_answer_is_cut_off() -> None:
    async def pour(stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n")
        while True:
            await stream.send(bytes(65536))

    found = await ask_raw(pour)
    assert type(found) is PeerGarbage
    assert "more than 100000 bytes" in str(found)


async def test_silence_and_dripping_end_in_time() -> None:
    async def silent(stream: anyio.abc.SocketStream) -> None:
        await anyio.sleep_forever()

    async def drip(stream: anyio.abc.SocketStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        while True:
            await anyio.sleep(0.05)
            await stream.send(b"x")

    with anyio.fail_after(2):
        assert "was silent for 0.2 s" in str(await ask_raw(silent))
        assert "within 0.6 s" in str(await ask_raw(drip))


async def test_a_peer_that_never_listens_does_not_hold_up_another() -> None:
    async def never(stream: anyio.abc.SocketStream) -> None:
        await anyio.sleep_forever()

    async def ask_silent(asking: GossipClient, url: str) -> None:
        with pytest.raises(PeerUnreachable):
            await asking.request(url, PATH, b"x")

    async with (
        raw_peer(never) as silent,
        receiver() as sound,
        client() as asking,
        anyio.create_task_group() as group,
    ):
        for _ in range(20):
            group.start_soon(ask_silent, asking, silent)
        with anyio.fail_after(0.9):
            assert await asking.request(sound.url, PATH, b"x") == b"<x>"
        group.cancel_scope.cancel()


# ---- peers that hold the secret and misbehave


def signed(status: int, body: bytes, encoding: bytes = b"") -> httpx.MockTransport:
    """A peer that answers every request so, with a genuine signature."""

    def answer(request: httpx.Request) -> httpx.Response:
        header = request.headers["authorization"].encode()
        shown = request.headers.get("content-encoding", "").encode()
        seal = open_request(KEYS, b"POST", request.url.raw_path, shown, header)
        assert seal is not None
        headers = {"cks-reply": seal_reply(KEYS, seal.mac, RECEIVER, status, encoding, body).decode()}
        if encoding:
            headers["content-encoding"] = encoding.decode()
        stream = httpx.ByteStream(body)
        return httpx.Response(status, headers=headers, stream=stream)

    return httpx.MockTransport(answer)


@pytest.mark.parametrize(
    ("status", "body", "encoding"),
    [
        (409, b"", b""),
        (409, b"[]", b""),
        (409, b'{"code":"replayed"}', b""),
        (409, b'{"code":"replayed","receiver":"a-0","counter":"1"}', b""),
        (409, b'{"code":"replayed","receiver":"a-0\\r\\nx: y","counter":1}', b""),
        (409, b'{"code":"replayed","receiver":"a-0","counter":-1}', b""),
        (409, b'{"code":"replayed","receiver":"a-0","counter":1e400}', b""),
        (409, b"[" * 100_000, b""),
        (400, b"\xff", b""),
        (200, b"no gzip", b"gzip"),
        (200, b"x", b"br"),
        (200, gzip.compress(bytes(10**7)), b"gzip"),
    ],
)
async def test_a_signed_answer_that_makes_no_sense_is_garbage(
    status: int, body: bytes, encoding: bytes
) -> None:
    async with client(limits=QUICK, transport=signed(status, body, encoding)) as asking:
        with pytest.raises(PeerGarbage):
            await asking.request("http://peer", PATH, b"x")


async def test_a_peer_that_never_takes_a_request_is_given_up() -> None:
    told = b'{"code":"replayed","receiver":"a-0","counter":1}'
    async with client(transport=signed(409, told)) as asking:
        with pytest.raises(PeerRefused, match="none of 5 tries was new") as caught:
            await asking.request("http://peer", PATH, b"x")
        assert "copy" in caught.value.hint


async def test_what_a_peer_says_is_shown_in_one_bounded_line() -> None:
    body = b'{"message":"a\\nb\\u001b[31m' + b"x" * 5000 + b'"}'
    async with client(transport=signed(400, body)) as asking:
        with pytest.raises(PeerRefused) as caught:
            await asking.request("http://peer", PATH, b"x")
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


# ---- someone in between


class Between(httpx.AsyncBaseTransport):
    """Passes requests on and hands `change` each answer's status, signature and body."""

    def __init__(self, change: Callable[[int, bytes, bytes], tuple[int, bytes, bytes]]) -> None:
        self._change = change
        self._inner = httpx.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        body = b"".join([chunk async for chunk in response.aiter_raw()])
        status, seal, body = self._change(response.status_code, response.headers["cks-reply"].encode(), body)
        return httpx.Response(status, headers=[(b"cks-reply", seal)], stream=httpx.ByteStream(body))

    async def aclose(self) -> None:
        await self._inner.aclose()


async def test_an_answer_altered_on_its_way_is_garbage() -> None:
    chance = random.Random(11)
    armed = False

    def change(status: int, seal: bytes, body: bytes) -> tuple[int, bytes, bytes]:
        if not armed:
            return status, seal, body
        match chance.randrange(3):
            case 0:
                return chance.choice([201, 400, 409, 503]), seal, body
            case 1:
                return status, flipped(seal, chance), body
            case _:
                return status, seal, flipped(body, chance)

    async with receiver() as peer, client(transport=Between(change)) as asking:
        await asking.request(peer.url, PATH, b"hello")
        armed = True
        for _ in range(200):
            with pytest.raises(PeerGarbage, match="without a valid signature"):
                await asking.request(peer.url, PATH, b"hello")


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    changed[chance.randrange(len(changed))] ^= chance.randint(1, 127)
    return bytes(changed)


async def test_an_older_answer_does_not_pass_for_a_new_one() -> None:
    kept: list[tuple[int, bytes, bytes]] = []

    def change(status: int, seal: bytes, body: bytes) -> tuple[int, bytes, bytes]:
        kept.append((status, seal, body))
        return kept[1] if len(kept) > 2 else (status, seal, body)

    async with receiver() as peer, client(transport=Between(change)) as asking:
        assert await asking.request(peer.url, PATH, b"hello") == b"<hello>"
        with pytest.raises(PeerGarbage, match="without a valid signature"):
            await asking.request(peer.url, PATH, b"hello")


async def test_an_older_409_does_not_lead_a_client_back() -> None:
    kept: list[tuple[int, bytes, bytes]] = []

    def change(status: int, seal: bytes, body: bytes) -> tuple[int, bytes, bytes]:
        kept.append((status, seal, body))
        return kept[0]

    async with receiver() as peer, client(transport=Between(change)) as asking:
        with pytest.raises(PeerGarbage, match="without a valid signature"):
            await asking.request(peer.url, PATH, b"hello")
        assert [status for status, _, _ in kept] == [409, 200]
