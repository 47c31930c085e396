"""RFC 3339 times: what is read, what is refused, and that printing and reading agree."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.model.times import MAX_MS, MIN_MS, format_ms, parse_rfc3339

MAY_5 = 1_778_011_200_000


class Unprintable(int):
    """An integer beyond Python's limit for text, which pytest could not name a case after."""

    def __str__(self) -> str:
        return "huge"


HUGE = Unprintable(10**5000)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("2026-05-05T20:00:00Z", MAY_5),
        ("2026-05-05t20:00:00z", MAY_5),
        ("2026-05-05T20:00:00", MAY_5),
        ("2026-05-05T20:00:00+00:00", MAY_5),
        ("2026-05-05T20:00:00-00:00", MAY_5),
        ("2026-05-06T01:30:00+05:30", MAY_5),
        ("2026-05-05T12:00:00-08:00", MAY_5),
        ("2026-05-05T20:00:00.5Z", MAY_5 + 500),
        ("2026-05-05T20:00:00.1239Z", MAY_5 + 123),
        ("2026-05-05T20:00:00.0009999Z", MAY_5),
        ("2026-05-05T20:00:00." + "9" * 5000 + "Z", MAY_5 + 999),
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1937-01-01T12:00:27.87+00:20", -1_041_337_172_130),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("0001-01-01T00:00:00Z", MIN_MS),
        ("9999-12-31T23:59:59.999Z", MAX_MS),
    ],
)
def test_times_that_are_read(text: str, expected_ms: int) -> None:
    assert parse_rfc3339(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    [
        "1990-12-31T23:59:60Z",
        "1990-12-31T15:59:60-08:00",
        "1990-12-31T23:59:60.75Z",
        "1991-01-01T05:29:60+05:30",
    ],
)
def test_a_leap_second_is_the_end_of_its_minute(text: str) -> None:
    assert parse_rfc3339(text) == parse_rfc3339("1990-12-31T23:59:59.999Z")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-05-05",
        "2026-05-05T20:00Z",
        "2026-05-05 20:00:00Z",
        "2026-05-05T20:00:00 Z",
        "2026-05-05T20:00:00.Z",
        "2026-05-05T20:00:00,5Z",
        "2026-05-05T20:00:00+0530",
        "2026-05-05T20:00:00+05",
        "2026-05-05T20:00:00+24:00",
        "2026-05-05T20:00:00+05:60",
        "2026-05-05T20:00:00Z\n",
        " 2026-05-05T20:00:00Z",
        "20260505T200000Z",
        "2026-5-5T20:00:00Z",
        "2026-13-01T00:00:00Z",
        "2026-00-01T00:00:00Z",
        "2026-02-29T00:00:00Z",
        "2026-04-31T00:00:00Z",
        "2026-05-05T24:00:00Z",
        "2026-05-05T20:60:00Z",
        "2026-05-05T20:00:61Z",
        "2026-05-05T20:00:60Z",
        "1990-12-31T23:59:60+01:00",
        "0000-01-01T00:00:00Z",
        "-0001-01-01T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
        "٢٠٢٦-05-05T20:00:00Z",
        "2026-05-05T20:00:00Z\x00",
        "\ud800",
        "9" * 100_000,
    ],
)
def test_texts_that_are_no_time_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"time") as caught:
        parse_rfc3339(text)
    message = str(caught.value)
    message.encode()
    assert repr(text[:10])[:-1] in message
    assert len(message) < 300


@pytest.mark.parametrize("value", [None, 5, 1.5, True, [], {}, b"2026-05-05T20:00:00Z", HUGE])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_rfc3339(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (MAY_5, "2026-05-05T20:00:00Z"),
        (MAY_5 + 7, "2026-05-05T20:00:00.007Z"),
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (MIN_MS, "0001-01-01T00:00:00Z"),
        (MAX_MS, "9999-12-31T23:59:59.999Z"),
    ],
)
def test_printing(ms: int, text: str) -> None:
    assert format_ms(ms) == text


@pytest.mark.parametrize("ms", [MIN_MS - 1, MAX_MS + 1, 10**30, HUGE])
def test_times_outside_four_digit_years_are_not_printed(ms: int) -> None:
    with pytest.raises(ValueError, match="outside the years 0001 to 9999"):
        format_ms(ms)


@given(st.integers(MIN_MS, MAX_MS))
def test_what_is_printed_reads_as_itself(ms: int) -> None:
    assert parse_rfc3339(format_ms(ms)) == ms


@given(st.datetimes(), st.integers(-1439, 1439))
def test_the_standard_library_agrees(local: datetime, offset_min: int) -> None:
    moment = local.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if MIN_MS <= expected <= MAX_MS:
        assert parse_rfc3339(moment.isoformat()) == expected
    else:
        with pytest.raises(ValueError, match="outside the years"):
            parse_rfc3339(moment.isoformat())


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        ms = parse_rfc3339(text)
    except ValueError:
        return
    assert MIN_MS <= ms <= MAX_MS
