"""Signatures and the guard against replays, without a socket: laws over all orders and all altered bytes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net_building import OTHER_SECRET, RECEIVER, SECRET, SENDER

from cks_runtime.net.signing import (
    COUNTER_MAX,
    WINDOW,
    Channel,
    Guard,
    Keys,
    Seal,
    Stale,
    open_reply,
    open_request,
    seal_reply,
    seal_request,
)

KEYS = Keys.of(SECRET)
FIELDS = (b"POST", b"/gossip/digest", b"")
HEADER, MAC = seal_request(KEYS, *FIELDS, SENDER, Channel("instance-0", 6), b"body")


def seal(counter: int, sender: str = SENDER, receiver: str = "instance-0") -> Seal:
    return Seal(sender, receiver, counter, b"", b"")


def test_a_sealed_request_opens_as_what_it_says() -> None:
    found = open_request(KEYS, *FIELDS, HEADER)
    assert found == Seal(SENDER, "instance-0", 7, HEADER.split(b".")[-2], MAC)
    assert found.fits(b"body")
    assert not found.fits(b"bodY")


def test_another_secret_opens_nothing() -> None:
    assert open_request(Keys.of(OTHER_SECRET), *FIELDS, HEADER) is None


@given(st.integers(0, 2), st.binary(max_size=30))
def test_no_other_method_target_or_encoding_opens(field: int, other: bytes) -> None:
    fields = [*FIELDS]
    if fields[field] != other:
        fields[field] = other
        assert open_request(KEYS, *fields, HEADER) is None


def test_fields_cannot_lend_each_other_bytes() -> None:
    assert open_request(KEYS, b"POST/", b"gossip/digest", b"", HEADER) is None
    assert open_request(KEYS, b"POST", b"/gossip/dig", b"est", HEADER) is None


@given(st.integers(0, len(HEADER) - 1), st.integers(1, 255))
def test_no_altered_byte_of_the_header_opens(place: int, by: int) -> None:
    altered = bytearray(HEADER)
    altered[place] ^= by
    assert open_request(KEYS, *FIELDS, bytes(altered)) is None


@given(st.binary(max_size=200))
def test_no_garbage_opens_or_crashes(header: bytes) -> None:
    assert open_request(KEYS, *FIELDS, header) is None
    assert open_reply(KEYS, MAC, 200, b"", header, b"") is None


@pytest.mark.parametrize("counter", ["-1", "+7", " 7", "07 ", "7e0", "٧", "9" * 21, "0x7", ""])
def test_a_counter_is_decimal_digits(counter: str) -> None:
    parts = HEADER.split(b".")
    parts[2] = counter.encode()
    assert open_request(KEYS, *FIELDS, b".".join(parts)) is None


def test_a_reply_answers_one_request_only() -> None:
    header = seal_reply(KEYS, MAC, RECEIVER, 200, b"", b"answer")
    assert open_reply(KEYS, MAC, 200, b"", header, b"answer") == RECEIVER
    _, other = seal_request(KEYS, *FIELDS, SENDER, Channel("instance-0", 7), b"body")
    assert open_reply(KEYS, other, 200, b"", header, b"answer") is None
    assert open_reply(KEYS, MAC, 400, b"", header, b"answer") is None
    assert open_reply(KEYS, MAC, 200, b"gzip", header, b"answer") is None
    assert open_reply(KEYS, MAC, 200, b"", header, b"Answer") is None
    assert open_reply(Keys.of(OTHER_SECRET), MAC, 200, b"", header, b"answer") is None
    renamed = header.replace(RECEIVER.encode(), SENDER.encode())
    assert open_reply(KEYS, MAC, 200, b"", renamed, b"answer") is None


def test_a_request_does_not_pass_as_a_reply() -> None:
    assert KEYS.request != KEYS.reply


def test_a_short_secret_is_refused_and_keys_are_not_shown() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes, has 31"):
        Keys.of(b"s" * 31)
    assert repr(KEYS) == "Keys()"


# ---- the guard


@given(st.permutations(range(1, 200)))
def test_requests_in_any_order_are_each_taken_once(order: list[int]) -> None:
    guard = Guard("instance")
    assert [guard.take(seal(counter)) for counter in order] == [None] * len(order)
    assert all(guard.take(seal(counter)) == Stale("replayed", "instance-0", 199) for counter in order)


@given(st.lists(st.integers(0, 3000), max_size=80))
def test_the_guard_is_a_set_as_far_as_its_window_reaches(counters: list[int]) -> None:
    guard, taken, highest = Guard("instance"), {0}, 0
    for counter in counters:
        fresh = counter not in taken and counter > highest - WINDOW
        assert (guard.check(seal(counter)) is None) == fresh
        assert (guard.take(seal(counter)) is None) == fresh
        if fresh:
            taken.add(counter)
            highest = max(highest, counter)


def test_ten_thousand_deliveries_with_duplicates_and_delays_are_taken_once() -> None:
    chance, guard, taken = random.Random(7), Guard("instance"), []
    sent = [seal(counter, SENDER[:15] + who) for counter in range(1, 1251) for who in "abcd"]
    deliveries = sorted(sent * 2, key=lambda one: one.counter + chance.uniform(0, 300))
    for one in deliveries:
        if guard.take(one) is None:
            taken.append((one.sender, one.counter))
    assert len(deliveries) == 10_000
    assert sorted(taken) == sorted((one.sender, one.counter) for one in sent)


def test_another_instance_is_told_what_to_go_on_with() -> None:
    guard = Guard("instance")
    guard.take(seal(40))
    assert guard.take(seal(41, receiver="")) == Stale("unknown_instance", "instance-0", 40)
    assert guard.take(seal(41, receiver="older-0")) == Stale("unknown_instance", "instance-0", 40)
    assert guard.take(seal(1, sender="c" * 16, receiver="")) == Stale("unknown_instance", "instance-0", 0)


def test_checking_alone_takes_nothing() -> None:
    guard = Guard("instance")
    assert guard.check(seal(5)) is None
    assert guard.take(seal(5)) is None
    assert guard.check(seal(5)) == Stale("replayed", "instance-0", 5)


def test_the_last_counter_is_taken_and_the_next_begins_a_new_epoch() -> None:
    guard, channel = Guard("instance"), Channel("instance-0", COUNTER_MAX - 1)
    assert guard.take(seal(channel.next_counter())) is None
    beyond = seal(channel.next_counter())
    assert beyond.counter == 2**63
    told = guard.take(beyond)
    assert told == Stale("unknown_instance", "instance-1", 0)
    channel.adopt(told.receiver, told.counter)
    again = replace(beyond, receiver=channel.receiver, counter=channel.next_counter())
    assert guard.take(again) is None
    assert guard.take(beyond) == Stale("unknown_instance", "instance-1", 1), "the epoch changes once"
    assert guard.take(seal(COUNTER_MAX)) == Stale("unknown_instance", "instance-1", 1)


def test_too_many_senders_begin_a_new_epoch_instead_of_forgetting_one() -> None:
    guard = Guard("instance", senders_max=3)
    for who in "abc":
        assert guard.take(seal(9, sender=who * 16)) is None
    assert guard.take(seal(9, sender="d" * 16)) == Stale("unknown_instance", "instance-1", 0)
    for who in "abc":
        assert guard.take(seal(9, sender=who * 16)) == Stale("unknown_instance", "instance-1", 0)


def test_a_channel_never_goes_back_for_the_same_instance() -> None:
    channel = Channel("one-0", 10)
    channel.adopt("one-0", 5)
    assert channel.next_counter() == 11
    channel.adopt("two-0", 5)
    assert channel.next_counter() == 6


@pytest.mark.parametrize(
    ("receiver", "counter"), [("", 1), ("a-0\r\nx: y", 1), ("a", 1), ("a-0", -1), ("a-0", 2**63)]
)
def test_a_channel_refuses_what_no_receiver_says(receiver: str, counter: int) -> None:
    with pytest.raises(ValueError, match="impossible"):
        Channel().adopt(receiver, counter)
