"""Compression of message bodies: longer ones travel as gzip, and nothing unpacks to more than a stated size."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

from anyio import to_thread

GZIP: Final = b"gzip"
IDENTITY: Final = b""
COMPRESS_FROM_BYTES: Final = 1024
THREAD_FROM_BYTES: Final = 64 * 1024
"""A level-1 deflate of this much takes about a millisecond; more would keep the loop from others."""

_GZIP_WINDOW: Final = 31


class BodyTooLarge(ValueError):
    """A body unpacks to more than is allowed."""


class BodyDamaged(ValueError):
    """A body is not in the encoding it names."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A body as it travels, with its content-encoding (empty for none)."""

    encoding: bytes
    data: bytes


async def encode(body: bytes) -> Encoded:
    """The body as it travels: gzip when it is longer than 1 KB and that makes it shorter."""
    if len(body) <= COMPRESS_FROM_BYTES:
        return Encoded(IDENTITY, body)
    packed = _pack(body) if len(body) < THREAD_FROM_BYTES else await to_thread.run_sync(_pack, body)
    return Encoded(GZIP, packed) if len(packed) < len(body) else Encoded(IDENTITY, body)


async def decode(encoded: Encoded, bytes_max: int) -> bytes:
    """The body that was encoded. Raises BodyTooLarge beyond `bytes_max`, BodyDamaged for what cannot be read."""
    match encoded.encoding:
        case b"":
            if len(encoded.data) > bytes_max:
                raise BodyTooLarge(f"the body has more than {bytes_max} bytes")
            return encoded.data
        case b"gzip" if len(encoded.data) < THREAD_FROM_BYTES // 8:
            return _unpack(encoded.data, bytes_max)
        case b"gzip":
            return await to_thread.run_sync(_unpack, encoded.data, bytes_max)
        case other:
            raise BodyDamaged(f"the content-encoding {other[:40]!r} is not gzip")


def _pack(body: bytes) -> bytes:
    packer = zlib.compressobj(1, wbits=_GZIP_WINDOW)
    return packer.compress(body) + packer.flush()


def _unpack(data: bytes, bytes_max: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW)
    try:
        body = unpacker.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise BodyDamaged("the body is not gzip") from error
    if len(body) > bytes_max:
        raise BodyTooLarge(f"the body unpacks to more than {bytes_max} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise BodyDamaged("the gzip body is cut off or has something behind it")
    return body
