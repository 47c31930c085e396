"""Columns read as what they should be, whatever the row of a damaged file holds."""

from __future__ import annotations


def binary(value: object) -> bytes:
    """The bytes of a BLOB. What damage turned into another type keeps bytes, which then fail their check."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")
