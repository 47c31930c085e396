"""What a stranger, or someone between two replicas, can send: refused with 4xx, never taken, others unaffected."""

from __future__ import annotations

import gzip
import os
import random
import re
from collections.abc import Iterator

import anyio
import orjson
import pytest
import structlog
from net_building import (
    OTHER_SECRET,
    PATH,
    Raw,
    Receiver,
    client,
    complete,
    receiver,
    request_bytes,
    send_raw,
)

from cks_runtime.net import endpoint
from cks_runtime.net.endpoint import EndpointLimits
from cks_runtime.net.errors import PeerRefused

FUZZED = int(os.environ.get("CKS_TEST_FUZZED", "500"))
"""A long run sets 5,000."""
REFUSED = {400, 401, 408, 409, 413}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


async def well(peer: Receiver) -> None:
    """A genuine peer is served, and nothing but its requests was ever taken."""
    async with client() as asking:
        assert await asking.request(peer.url, PATH, b"well?") == b"<well?>"
    assert {body for _, body, _ in peer.taken} <= {b"well?", b"hello"}


async def test_a_captured_request_is_refused_when_sent_again() -> None:
    async with receiver() as peer:
        captured = request_bytes(peer.receiver, 1)
        assert (await send_raw(peer.port, captured)).status == 200
        for _ in range(50):
            got = await send_raw(peer.port, captured)
            assert got.status == 409
            assert b"cks-reply" in got.head
            assert orjson.loads(got.body)["code"] == "replayed"
        assert len(peer.taken) == 1
        await well(peer)


async def test_a_captured_request_is_refused_after_a_restart_too() -> None:
    async with receiver() as peer:
        captured = request_bytes(peer.receiver, 1)
        await send_raw(peer.port, captured)
    async with receiver(peer.port) as again:
        got = await send_raw(peer.port, captured)
        assert (got.status, orjson.loads(got.body)["code"]) == (409, "unknown_instance")
        assert again.taken == []
        await well(again)


async def test_copies_of_one_request_sent_at_once_are_taken_once() -> None:
    statuses = []

    async def deliver(peer: Receiver, data: bytes) -> None:
        statuses.append((await send_raw(peer.port, data)).status)

    async with receiver() as peer:
        captured = request_bytes(peer.receiver, 1)
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(deliver, peer, captured)
    assert sorted(statuses) == [200] + [409] * 29


async def test_a_request_held_back_is_taken_once_when_it_comes() -> None:
    async with receiver() as peer:
        late = request_bytes(peer.receiver, 1)
        assert (await send_raw(peer.port, request_bytes(peer.receiver, 2))).status == 200
        assert [(await send_raw(peer.port, late)).status for _ in range(2)] == [200, 409]


def spans(data: bytes) -> list[tuple[int, int]]:
    """Where the fields of a request stand: method, path, the parts of the signature, encoding, body."""
    found = [re.search(pattern, data) for pattern in (rb"^POST", rb"/gossip/\w+", rb"CKS1", rb"gzip")]
    places = [match.span() for match in found if match]
    seal = re.search(rb"CKS1 (\w+)\.([\w-]+)\.(\d+)\.([\w-]+)\.([\w-]+)", data)
    assert seal is not None
    places += [seal.span(group) for group in range(1, 6)]
    return [*places, (data.index(b"\r\n\r\n") + 4, len(data))]


async def test_an_altered_byte_in_any_field_is_refused() -> None:
    chance = random.Random(5)
    body = gzip.compress(b"hello")
    async with receiver() as peer:
        genuine = request_bytes(peer.receiver, 1, body, encoding=b"gzip")
        places = spans(genuine)
        assert len(places) == 10
        for number in range(300):
            start, end = places[number % len(places)]
            altered = bytearray(genuine)
            altered[chance.randrange(start, end)] ^= chance.randint(1, 255)
            got = await send_raw(peer.port, bytes(altered))
            assert got.status in REFUSED, bytes(altered)
            assert not peer.taken
        assert (await send_raw(peer.port, genuine)).status == 200
        await well(peer)


async def test_an_altered_byte_anywhere_takes_nothing_else() -> None:
    chance = random.Random(6)
    limits = EndpointLimits(body_s=0.2)
    async with receiver(limits=limits) as peer:
        for counter in range(1, 201):
            altered = bytearray(request_bytes(peer.receiver, counter))
            altered[chance.randrange(len(altered))] ^= chance.randint(1, 255)
            with anyio.move_on_after(0.15):  # a head that lost its end is not answered
                got = await send_raw(peer.port, bytes(altered))
                # a letter's case in a header's name, or the Host, says nothing: then it is the genuine request
                assert got.status in REFUSED | {200}
        await well(peer)


async def test_dropped_added_and_swapped_headers_are_refused() -> None:
    async with receiver() as peer:
        genuine = request_bytes(peer.receiver, 1)
        seal = re.search(rb"Authorization: .*\r\n", genuine)
        other = re.search(rb"Authorization: .*\r\n", request_bytes(peer.receiver, 2, b"other"))
        assert seal and other
        for changed in (
            genuine.replace(seal[0], b""),
            genuine.replace(seal[0], other[0]),
            genuine.replace(seal[0], seal[0] + other[0]),
            genuine.replace(seal[0], other[0] + seal[0]),
            genuine.replace(seal[0], seal[0] + b"Content-Encoding: gzip\r\n"),
            genuine.replace(seal[0], "Authorization: CKS1 ключ\r\n".encode()),
            genuine.replace(seal[0], b"Authorization: Bearer s\r\n"),
            genuine.replace(PATH.encode(), PATH.encode() + b"?x=1"),
            genuine.replace(PATH.encode(), b"/gossip/%64igest"),
            genuine.replace(b"POST", b"GET"),
            genuine.replace(b"hello", b"jello"),
        ):
            got = await send_raw(peer.port, changed)
            assert got.status == 401
            assert b"secrets differ" in got.body
        assert peer.taken == []
        await well(peer)


async def test_a_forged_sender_is_refused() -> None:
    async with receiver() as peer:
        genuine = request_bytes(peer.receiver, 1)
        got = await send_raw(peer.port, genuine.replace(b"a" * 16, b"c" * 16))
        assert got.status == 401
        got = await send_raw(peer.port, request_bytes(peer.receiver, 1, secret=OTHER_SECRET))
        assert got.status == 401
        await well(peer)


async def test_our_own_words_sent_back_to_us_are_refused() -> None:
    async with receiver(replica="a" * 16) as peer:
        got = await send_raw(peer.port, request_bytes(peer.receiver, 1))
        assert (got.status, orjson.loads(got.body)["code"]) == (409, "same_replica")
        assert peer.taken == []


@pytest.mark.parametrize("announced", [b"content-length: 50000000", b"transfer-encoding: chunked"])
async def test_an_oversized_stranger_is_refused_unread(announced: bytes) -> None:
    async with receiver() as peer:
        head = b"POST /gossip/digest HTTP/1.1\r\nhost: x\r\n" + announced + b"\r\n\r\n"
        got = await send_raw(peer.port, head + b"200000\r\n" + b"x" * 0x200000)
        assert got.status in (401, 413)
        await well(peer)


async def test_an_oversized_genuine_request_in_chunks_is_refused() -> None:
    async with receiver(limits=EndpointLimits(body_bytes=100_000)) as peer:
        body = b"x" * 300_000
        genuine = request_bytes(peer.receiver, 1, body)
        head = genuine[: -len(body)].replace(b"Content-Length: 300000", b"Transfer-Encoding: chunked")
        got = await send_raw(peer.port, head + b"493e0\r\n" + body + b"\r\n0\r\n\r\n")
        assert got.status == 413
        await well(peer)


async def test_a_bomb_from_a_genuine_peer_is_refused() -> None:
    async with receiver() as peer:
        bomb = gzip.compress(bytes(10**8))
        got = await send_raw(peer.port, request_bytes(peer.receiver, 1, bomb, encoding=b"gzip"))
        assert got.status == 413
        got = await send_raw(peer.port, request_bytes(peer.receiver, 2, b"no gzip", encoding=b"gzip"))
        assert got.status == 400
        got = await send_raw(peer.port, request_bytes(peer.receiver, 3, b"x", encoding=b"br"))
        assert got.status == 400
        await well(peer)


@pytest.mark.parametrize("signed", [True, False])
async def test_a_body_that_drips_is_cut_off_while_others_are_served(
    signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "DISCARD_S", 0.3)

    async def drip(peer: Receiver, data: bytes) -> None:
        got = bytearray()

        async def listen(stream: anyio.abc.SocketStream) -> None:
            with anyio.move_on_after(3):
                while not complete(bytes(got)):
                    got.extend(await stream.receive())
            group.cancel_scope.cancel()

        async with (
            await anyio.connect_tcp("127.0.0.1", peer.port) as stream,
            anyio.create_task_group() as group,
        ):
            group.start_soon(listen, stream)
            await stream.send(data[:-500])
            for byte in data[-500:]:
                await anyio.sleep(0.05)
                await stream.send(bytes([byte]))
        answers.append(bytes(got))

    answers: list[bytes] = []
    async with receiver(limits=EndpointLimits(body_s=0.3)) as peer:
        data = request_bytes(peer.receiver, 1, b"x" * 600)
        if not signed:
            data = data.replace(b"CKS1", b"CKS2")
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(drip, peer, data)
            for _ in range(5):
                await anyio.sleep(0.05)
                await well(peer)
    wanted = b"HTTP/1.1 408" if signed else b"HTTP/1.1 401"
    assert [answer[:12] for answer in answers] == [wanted] * 10


async def refusing(path: str, body: bytes, sender: str) -> bytes:
    if body not in (b"hello", b"well?"):
        raise ValueError(f"no message: {body[:20]!r}")
    return b"<" + body + b">"


async def test_garbage_from_a_genuine_peer_is_refused_every_time() -> None:
    chance = random.Random(8)
    async with receiver(handler=refusing) as peer, client() as asking:
        for _ in range(FUZZED):
            with pytest.raises(PeerRefused) as caught:
                await asking.request(peer.url, PATH, chance.randbytes(chance.randint(0, 300)))
            assert caught.value.status == 400
        assert await asking.request(peer.url, PATH, b"well?") == b"<well?>"


async def post_all(port: int, bodies: list[bytes]) -> list[Raw]:
    """Unsigned posts on one connection, one after the other."""
    answers = []
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        for body in bodies:
            head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            await stream.send(head.encode() + body)
            came = b""
            while not complete(came):
                came += await stream.receive()
            answers.append(Raw(int(came[9:12]), *came.split(b"\r\n\r\n", 1)))
    return answers


async def test_garbage_from_strangers_is_refused_every_time(
    logged: list[structlog.typing.EventDict],
) -> None:
    chance = random.Random(9)
    bodies = [chance.randbytes(chance.randint(0, 2000)) for _ in range(FUZZED)]
    async with receiver() as peer:
        assert {got.status for got in await post_all(peer.port, bodies)} == {401}
        assert peer.endpoint.refusals.by_status == {401: FUZZED}
        await well(peer)
    assert len(logged) < 20, "a flood must not fill the log"


async def test_bytes_that_are_no_http_are_refused_and_harm_nobody(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(10)
    async with receiver() as peer:
        genuine = request_bytes("other-0", 1)
        for number in range(FUZZED // 10):
            data = bytearray(chance.randbytes(200) if number % 3 == 0 else genuine)
            for _ in range(chance.randint(1, 20)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            if number % 3 == 2:
                del data[chance.randrange(len(data)) :]
            with anyio.move_on_after(0.05):  # what is cut off gets no answer, and need not be waited for
                got = await send_raw(peer.port, bytes(data))
                assert got.status in REFUSED | {0}
        await well(peer)
    assert caplog.records == [], "nothing fell through to the event loop"


async def test_no_answer_shows_a_trace_or_a_secret() -> None:
    async def fail(path: str, body: bytes, sender: str) -> bytes:
        raise RuntimeError("secret is ssssssss")

    async with receiver(handler=fail) as peer:
        got = await send_raw(peer.port, request_bytes(peer.receiver, 1))
        assert got.status == 500
        for word in (b"Traceback", b"RuntimeError", b"ssss", b".py"):
            assert word not in got.head + got.body
