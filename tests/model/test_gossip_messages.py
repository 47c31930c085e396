"""Gossip messages: what is written is read again, and every other byte string is refused in one way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.model.gossip_messages import (
    MESSAGE_BYTES_MAX,
    PAGE_BYTES,
    Blobs,
    Digest,
    Done,
    GossipRefused,
    Message,
    Turn,
    WantBlobs,
    WantHistory,
    decode,
    encode,
    page,
)

hashes = st.binary(min_size=32, max_size=32)
some = st.lists(hashes, min_size=1, max_size=5).map(tuple)
any_number = st.lists(hashes, max_size=5).map(tuple)
blobs = st.lists(st.binary(max_size=50), max_size=4).map(tuple)
replicas = st.text("abcdefghij0123456789", min_size=16, max_size=16)
counts = st.integers(0, 100)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Digest, replicas, hashes, st.dictionaries(replicas, counts, max_size=4), blobs),
    st.builds(WantBlobs, some),
    st.builds(WantHistory, some, any_number, counts),
    st.builds(Blobs, blobs),
    st.builds(Turn, st.text(max_size=20), counts, hashes, blobs),
    st.builds(Done, hashes),
)


@given(messages)
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_nothing_else_is_raised(data: bytes) -> None:
    with pytest.raises(GossipRefused):
        decode(data)


@given(messages, st.data())
def test_an_altered_message_is_refused_or_is_another_message(message: Message, data: st.DataObject) -> None:
    whole = bytearray(encode(message))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(whole))
    except GossipRefused as error:
        assert error.reason


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'{"v":2,"kind":"blobs"}\n',
        b'{"v":1,"kind":"blobs"}',
        b'{"v":1,"kind":"blobs","sizes":[2]}\nx',
        b'{"v":1,"kind":"blobs","sizes":[-1]}\n',
        b'{"v":1,"kind":"blobs","sizes":[true]}\nx',
        b'{"v":1,"kind":"want","hashes":[]}\n',
        b'{"v":1,"kind":"want","hashes":["zz"]}\n',
        b'{"v":1,"kind":"done","root":7}\n',
        b'{"v":1,"kind":"other"}\n',
    ],
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(GossipRefused):
        decode(line)


def test_a_message_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(GossipRefused, match="at most"):
        decode(b" " * (MESSAGE_BYTES_MAX + 1))


def test_a_page_holds_what_fits_and_one_blob_at_least() -> None:
    large = b"x" * (PAGE_BYTES - 10)
    assert page([large, b"0123456789", b"x"]) == (large, b"0123456789")
    assert page([large * 2, b"x"]) == (large * 2,)
    assert page([]) == ()
