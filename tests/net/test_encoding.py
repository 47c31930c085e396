"""Bodies as they travel: what went in comes out, and nothing unpacks beyond its limit."""

from __future__ import annotations

import gzip
import os
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.net.encoding import BodyDamaged, BodyTooLarge, Encoded, decode, encode


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize("body", [b"", b"x" * 1024, b"x" * 1025, b"x" * 10**6, os.urandom(200_000)])
async def test_what_goes_in_comes_out(body: bytes) -> None:
    encoded = await encode(body)
    assert len(encoded.data) <= len(body)
    assert encoded.encoding == (b"gzip" if len(encoded.data) < len(body) else b"")
    assert await decode(encoded, len(body)) == body


async def test_short_bodies_stay_as_they_are() -> None:
    assert await encode(b"x" * 1024) == Encoded(b"", b"x" * 1024)


@pytest.mark.parametrize("size", [1001, 10**6, 10**7])
async def test_a_bomb_is_refused(size: int) -> None:
    with pytest.raises(BodyTooLarge, match="more than 1000 bytes"):
        await decode(Encoded(b"gzip", gzip.compress(bytes(size))), 1000)


async def test_a_plain_body_keeps_to_the_limit() -> None:
    with pytest.raises(BodyTooLarge):
        await decode(Encoded(b"", bytes(1001)), 1000)


PACKED = gzip.compress(b"knowledge" * 20)


@pytest.mark.parametrize("data", [b"", b"knowledge", PACKED[:-1], PACKED + b"x", PACKED + PACKED])
async def test_what_is_not_one_whole_gzip_is_refused(data: bytes) -> None:
    with pytest.raises(BodyDamaged):
        await decode(Encoded(b"gzip", data), 1000)


@pytest.mark.parametrize("encoding", [b"br", b"GZIP", b"gzip, gzip", b"identity", b"\xff"])
async def test_other_encodings_are_refused(encoding: bytes) -> None:
    with pytest.raises(BodyDamaged, match="is not gzip"):
        await decode(Encoded(encoding, PACKED), 1000)


@given(st.binary(max_size=300))
async def test_garbage_is_refused_or_read_never_a_crash(data: bytes) -> None:
    with suppress(BodyDamaged, BodyTooLarge):
        await decode(Encoded(b"gzip", data), 1000)
