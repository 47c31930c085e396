"""Two replicas over real sockets: round trips, restarts, several senders, and every kind of refusal."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import pytest
import structlog
from net_building import (
    OTHER_SECRET,
    PATH,
    RECEIVER,
    SENDER,
    Handler,
    client,
    receiver,
    request_bytes,
    send_raw,
)

from cks_runtime.model.errors import CksError, InvalidParameter, StoreFull, TooLarge
from cks_runtime.net.client import ClientLimits
from cks_runtime.net.endpoint import EndpointLimits
from cks_runtime.net.errors import PeerIsSelf, PeerRefused, PeerUnreachable, WrongSecret
from cks_runtime.net.signing import COUNTER_MAX, Channel


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.mark.parametrize("body", [b"", b"hello", os.urandom(5000), b"x" * 4_000_000])
async def test_a_body_goes_there_and_its_answer_comes_back(body: bytes) -> None:
    async with receiver() as peer, client() as asking:
        assert await asking.request(peer.url, PATH, body) == b"<" + body + b">"
        assert peer.taken == [(PATH, body, SENDER)]


async def test_getting_to_know_a_peer_costs_one_extra_request() -> None:
    async with receiver() as peer, client() as asking:
        for sent in (2, 3, 4):
            await asking.request(peer.url, PATH, b"x")
            assert asking.traffic(peer.url).requests == sent


async def test_a_restart_of_the_receiver_costs_one_extra_request() -> None:
    async with client() as asking:
        async with receiver() as peer:
            await asking.request(peer.url, PATH, b"before")
        async with receiver(peer.port) as again:
            # the dropped connection is noticed before it is used, or costs a request of its own
            assert await asking.request(again.url, PATH, b"after") == b"<after>"
            assert asking.traffic(again.url).requests in (4, 5)
            before = asking.traffic(again.url).requests
            await asking.request(again.url, PATH, b"after")
            assert asking.traffic(again.url).requests == before + 1
            assert [body for _, body, _ in again.taken] == [b"after", b"after"]


async def test_a_restart_of_the_sender_goes_on_above_its_old_counters() -> None:
    async with receiver() as peer:
        for _ in range(3):
            async with client() as asking:
                assert await asking.request(peer.url, PATH, b"x") == b"<x>"
        assert len(peer.taken) == 3


async def test_concurrent_requests_are_all_taken_once() -> None:
    async with receiver() as peer, client() as asking, anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(asking.request, peer.url, PATH, b"%d" % number)
    assert sorted(body for _, body, _ in peer.taken) == sorted(b"%d" % number for number in range(200))


async def test_two_senders_do_not_hold_each_other_up() -> None:
    async with receiver() as peer, client() as one, client(replica_id="c" * 16) as two:
        await one.request(peer.url, PATH, b"x")
        await two.request(peer.url, PATH, b"x")
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(one.request, peer.url, PATH, b"x")
                group.start_soon(two.request, peer.url, PATH, b"x")
        assert (one.traffic(peer.url).requests, two.traffic(peer.url).requests) == (52, 52)


async def test_two_processes_of_one_replica_get_by() -> None:
    async with receiver() as peer, client() as one, client() as two:
        for _ in range(20):
            assert await one.request(peer.url, PATH, b"x") == b"<x>"
            assert await two.request(peer.url, PATH, b"x") == b"<x>"


async def test_a_request_that_overtakes_others_does_not_shut_them_out() -> None:
    async def slow_or_quick(path: str, body: bytes, sender: str) -> bytes:
        if body == b"slow":
            await anyio.sleep(0.3)
        return body

    async with receiver(handler=slow_or_quick) as peer, client() as asking:
        await asking.request(peer.url, PATH, b"quick")
        async with anyio.create_task_group() as group:
            group.start_soon(asking.request, peer.url, PATH, b"slow")
            for _ in range(100):
                await asking.request(peer.url, PATH, b"quick")
        assert len(peer.taken) == 102
        assert asking.traffic(peer.url).requests == 103


async def test_counters_at_their_end_begin_anew() -> None:
    async with receiver() as peer, client() as asking:
        await asking.request(peer.url, PATH, b"x")
        asking._peers[peer.url].channel = Channel(peer.receiver, COUNTER_MAX - 1)
        before = asking.traffic(peer.url).requests
        for _ in range(3):
            assert await asking.request(peer.url, PATH, b"x") == b"<x>"
        assert asking.traffic(peer.url).requests == before + 4
        assert peer.receiver.endswith("-1")


async def test_differing_secrets_are_named_as_the_cause(logged: list[structlog.typing.EventDict]) -> None:
    async with receiver(secret=OTHER_SECRET) as peer, client() as asking:
        with pytest.raises(WrongSecret, match=rf"peer {peer.url} does not accept .* secrets .* differ"):
            await asking.request(peer.url, PATH, b"x")
        assert peer.taken == []
        assert "secrets differ" in peer.endpoint.refusals.last
        assert peer.endpoint.refusals.by_status == {401: 1}
    assert "secrets differ" in logged[0]["reason"]
    assert "ssss" not in repr(logged)


async def test_ones_own_address_is_recognised() -> None:
    async with receiver(replica=SENDER) as peer, client() as asking:
        with pytest.raises(PeerIsSelf, match="our own replica id"):
            await asking.request(peer.url, PATH, b"x")
        assert peer.taken == []


def failing(error: Exception) -> Handler:
    async def fail(path: str, body: bytes, sender: str) -> bytes:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("no\nmap"), 400, "no map"),
        (InvalidParameter("no such page"), 400, "no such page"),
        (TooLarge("a page has too many objects"), 413, "a page has too many objects"),
        (StoreFull("the disk is full"), 503, "the disk is full"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 400, "'utf-8' codec"),
        (KeyError("password123"), 500, "internal error "),
        (RecursionError("deep"), 500, "internal error "),
        (ExceptionGroup("several", [ValueError("one")]), 500, "internal error "),
        (ConnectionError("database gone"), 500, "internal error "),
    ],
)
async def test_an_error_of_the_handler_is_told_and_harms_nobody(
    error: Exception, status: int, reason: str
) -> None:
    async with receiver(handler=failing(error)) as peer, client() as asking:
        for _ in range(3):
            with pytest.raises(PeerRefused) as caught:
                await asking.request(peer.url, PATH, b"x")
            assert caught.value.status == status
            assert caught.value.reason.startswith(reason)
            assert "password123" not in str(caught.value)
        assert len(peer.taken) == 3


async def test_a_handler_that_hangs_is_ended() -> None:
    async def hang(path: str, body: bytes, sender: str) -> bytes:
        await anyio.sleep_forever()
        return b""

    limits = EndpointLimits(answer_s=0.1)
    async with receiver(handler=hang, limits=limits) as peer, client() as asking:
        with pytest.raises(PeerRefused, match="too slow at the moment"):
            await asking.request(peer.url, PATH, b"x")


async def test_bodies_beyond_the_limit_are_not_sent_and_not_taken() -> None:
    async with receiver(limits=EndpointLimits(body_bytes=1000)) as peer, client() as asking:
        await asking.request(peer.url, PATH, b"x")
        with pytest.raises(PeerRefused, match="larger than it allows"):
            await asking.request(peer.url, PATH, os.urandom(3_000_000))
        with pytest.raises(PeerRefused, match="more than 1000 bytes"):
            await asking.request(peer.url, PATH, b"x" * 100_000)
        assert await asking.request(peer.url, PATH, b"x") == b"<x>"
        with pytest.raises(ValueError, match="at most 4194304 bytes"):
            await asking.request(peer.url, PATH, b"x" * 5_000_000)
        assert [len(body) for _, body, _ in peer.taken] == [1, 1]


@pytest.mark.parametrize("path", ["/mcp", "gossip/x", "/gossip", "/gossip/a?b", "/gossip/ä", "/gossip/a\n"])
async def test_only_gossip_paths_are_asked_for(path: str) -> None:
    async with client() as asking:
        with pytest.raises(ValueError, match="starts with /gossip/"):
            await asking.request("http://127.0.0.1:1", path, b"")


async def test_only_posts_to_gossip_are_answered() -> None:
    async with receiver() as peer:
        got = await send_raw(peer.port, request_bytes(peer.receiver, 1, method="PUT"))
        assert got.status == 400
        got = await send_raw(peer.port, request_bytes(peer.receiver, 2, path="/gossipy"))
        assert got.status == 400
        assert peer.taken == []


async def test_a_peer_that_is_down_is_unreachable_and_later_reached() -> None:
    async with receiver() as peer:
        pass
    async with client() as asking:
        with pytest.raises(PeerUnreachable, match=f"peer {peer.url} cannot be reached"):
            await asking.request(peer.url, PATH, b"x")
        async with receiver(peer.port) as again:
            assert await asking.request(again.url, PATH, b"x") == b"<x>"


async def test_a_slow_peer_is_given_up_and_the_request_is_no_hindrance() -> None:
    async def slow(path: str, body: bytes, sender: str) -> bytes:
        await anyio.sleep(0.5 if body == b"slow" else 0)
        return body

    limits = ClientLimits(connect_s=1, read_s=0.1, total_s=3)
    async with receiver(handler=slow) as peer, client(limits=limits) as asking:
        with pytest.raises(PeerUnreachable, match=r"was silent for 0\.1 s"):
            await asking.request(peer.url, PATH, b"slow")
        assert await asking.request(peer.url, PATH, b"quick") == b"quick"


async def test_a_cancelled_request_leaves_a_usable_client() -> None:
    async def slow(path: str, body: bytes, sender: str) -> bytes:
        await anyio.sleep(0.2 if body == b"slow" else 0)
        return body

    async with receiver(handler=slow) as peer, client() as asking:
        for _ in range(20):
            with anyio.move_on_after(0.01):
                await asking.request(peer.url, PATH, b"slow")
        assert await asking.request(peer.url, PATH, b"quick") == b"quick"


async def test_settings_of_the_environment_are_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with receiver() as peer, client() as asking:
        assert await asking.request(peer.url, PATH, b"x") == b"<x>"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nonsense",
        "ftp://x",
        "http://",
        "http://user:hidden@",
        "http://h:0",
        "http://h:99999",
        "http://h:x",
        "http://" + "a" * 80,
        "http://[::",
        "http://\x00",
        "file:///etc/passwd",
    ],
)
async def test_an_impossible_address_is_unreachable_and_shows_no_password(url: str) -> None:
    async with client() as asking:
        with pytest.raises(PeerUnreachable) as caught:
            await asking.request(url, PATH, b"x")
        assert "hidden" not in str(caught.value)


async def test_a_password_in_an_address_is_neither_shown_nor_sent() -> None:
    async with receiver() as peer, client() as asking:
        url = f"http://user:hidden@127.0.0.1:{peer.port}/"
        assert await asking.request(url, PATH, b"x") == b"<x>"
    async with client() as asking:
        with pytest.raises(CksError) as caught:
            await asking.request(url, PATH, b"x")
        assert "hidden" not in str(caught.value)


def test_the_other_side_needs_an_id_and_a_long_secret() -> None:
    for wrong in ("", "A" * 16, "b" * 15, "b" * 17, "b" * 15 + "\n"):
        with pytest.raises(ValueError, match="replica id"):
            client(replica_id=wrong)
    with pytest.raises(ValueError, match="at least 32 bytes"):
        client(secret=b"short")
    assert client(replica_id=RECEIVER)
