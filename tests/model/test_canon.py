"""Canonical JSON against RFC 8785's published vectors, and the laws of normal values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum, StrEnum
from itertools import islice
from random import Random

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from rfc8785 import DOCUMENTS, NUMBERS, SEQUENCE_CHECKSUMS, double, sequence

from cks_runtime.model import canon
from cks_runtime.model.canon import (
    Json,
    NotCanonical,
    canonical,
    canonical_slowly,
    content_id,
    normalize,
    number_text,
    parse_exact,
)

# ---- published vectors


@pytest.mark.parametrize("line", NUMBERS.strip().splitlines())
def test_numbers_of_the_rfc(line: str) -> None:
    bits, text = line.split()
    x = double(int(bits, 16))
    assert number_text(x) == text
    assert canonical(x) == canonical_slowly(x) == text.encode()
    assert parse_exact(text) == x


@pytest.mark.parametrize("bits", [0x7FFFFFFFFFFFFFFF, 0x7FF0000000000000, 0xFFF0000000000000])
def test_numbers_that_the_rfc_refuses(bits: int) -> None:
    x = double(bits)
    for refuse in (number_text, canonical, canonical_slowly, normalize):
        with pytest.raises(NotCanonical, match="finite"):
            refuse(x)
    with pytest.raises(NotCanonical, match=r"^\$\.a\[1\]: "):
        canonical({"a": [None, x]})


@pytest.mark.parametrize("count", SEQUENCE_CHECKSUMS)
def test_the_published_number_sequence(count: int) -> None:
    lines = (f"{bits:x},{number_text(double(bits))}\n" for bits in islice(sequence(), count))
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == SEQUENCE_CHECKSUMS[count]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_of_the_rfc(name: str) -> None:
    written, expected = DOCUMENTS[name]
    value = json.loads(written)
    assert canonical(value) == canonical_slowly(value) == expected.encode()
    assert canonical(normalize(value)) == expected.encode()
    assert canonical(json.loads(expected)) == expected.encode()


def test_a_content_id_is_the_sha_256_of_the_bytes() -> None:
    empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert content_id({}).hex() == empty
    assert content_id({"a": 1, "b": 2}) == content_id({"b": 2.0, "a": 1.0})
    assert content_id([1]) != content_id([True])


# ---- the short cut

near_a_limit = st.one_of(
    st.sampled_from(
        [1e15, 1e16, 1e17, 1e20, 1e21, 1e22, 1e-4, 1e-5, 1e-6, 1e-7, 2.0**53, 2.0**63, 2.0**64, -0.0, 1.0]
    ),
    st.builds(lambda digits, power: float(f"{digits}e{power}"), st.integers(1, 10**17), st.integers(-30, 30)),
)
doubles = st.floats(allow_nan=False, allow_infinity=False) | near_a_limit
integers = st.integers(-(2**53) + 1, 2**53 - 1) | st.sampled_from(
    [2**53, -(2**53), 10**21, 2**63, 2**64, 10**300]
)
written = st.sampled_from(
    ["null", ":1.0,", "[null]", '"', "\\", "a0e3", ",1e5", "\x00\x1f\x7f", "\ue000", "\uffff", "😀"]
)
texts = st.text(st.characters(exclude_categories=["Cs"])) | written | st.lists(written).map("".join)
scalars = st.none() | st.booleans() | integers | doubles | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)


def outcome(write: Callable[[Json], bytes], value: Json) -> bytes | str:
    """The bytes, or the place of the refusal."""
    try:
        return write(value)
    except NotCanonical as refused:
        return refused.where


@settings(deadline=None, max_examples=100)
@given(values)
@example({"\ue000": 1, "\U00010000": 2})
@example({"a": [-1.0], "b": {"c": 5e-324}, "d": None})
@example([1.0])
@example([0.0, "a"])
@example({"a": "1.0", "b": ",1.0,", "c": 1.05})
def test_the_short_cut_writes_what_the_rfc_says(value: Json) -> None:
    assert outcome(canonical, value) == outcome(canonical_slowly, value)


@settings(deadline=None)
@given(st.recursive(scalars | st.sampled_from([math.nan, math.inf, 2**53 + 1]), st.lists, max_leaves=6))
def test_the_short_cut_refuses_what_the_rfc_refuses(value: Json) -> None:
    assert outcome(canonical, value) == outcome(canonical_slowly, value)


@pytest.mark.parametrize(
    "value",
    [
        {
            "confidence": 0.9,
            "radius_km": 1188.3,
            "count": 2**53 - 1,
            "superseded_by": None,
            "list": [1, True],
        },
        {"text": "version 1.0, not 1e16: 😀", "signature": "0e1e2e3", "ключ": "значение"},
        {"a": 0.00001, "b": 123456789.5, "c": -0.5},
    ],
)
def test_usual_values_take_the_short_cut(value: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = canonical_slowly(value)
    monkeypatch.delattr(canon, "canonical_slowly")
    assert canonical(value) == expected


@pytest.mark.parametrize("depth", [100, 254, 255, 5000])
def test_both_ways_refuse_the_same_depth(depth: int) -> None:
    value: Json = 0.5
    for _ in range(depth):
        value = [value]
    assert isinstance(outcome(canonical, value), bytes) == (depth <= 254)
    assert outcome(canonical, value) == outcome(canonical_slowly, value)


# ---- normal values


def same(a: Json, b: Json) -> bool:
    """Equal in type as well, unlike Python's 1 == 1.0 == True."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(deadline=None, max_examples=80)
@given(values)
def test_normalizing_keeps_the_canonical_bytes_and_happens_once(value: Json) -> None:
    try:
        normal = normalize(value)
    except NotCanonical:
        assert outcome(canonical, value) == outcome(canonical_slowly, value)
        assume(False)
    assert canonical(normal) == canonical(value)
    assert same(normalize(normal), normal)
    assert same(parse_exact(canonical(value)), normal)


@given(st.dictionaries(texts, st.integers(-9, 9)), st.randoms())
def test_the_order_of_keys_is_the_rfcs(value: dict[str, Json], random: Random) -> None:
    keys = list(value)
    random.shuffle(keys)
    data = canonical({key: value[key] for key in keys})
    assert data == canonical(value)
    assert list(json.loads(data)) == sorted(keys, key=lambda key: key.encode("utf-16-be"))


class Word(StrEnum):
    A = "a"


class Count(IntEnum):
    THREE = 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0, 1),
        (-0.0, 0),
        (0.1, 0.1),
        (2**53 - 1, 2**53 - 1),
        (2**53, 2.0**53),
        (-(2**53), -(2.0**53)),
        (2**53 + 2, 2.0**53 + 2),
        (10**21, 1e21),
        (1152921504606847000, 2.0**60),
        (10**308, 1e308),
        (True, True),
        ((1, (2.0, False)), [1, [2, False]]),
        ({"a": ()}, {"a": []}),
        (Word.A, "a"),
        (Count.THREE, 3),
        ({Word.A: None}, {"a": None}),
    ],
)
def test_the_one_spelling(value: object, expected: Json) -> None:
    assert same(normalize(value), expected)


def test_normalizing_makes_fresh_containers() -> None:
    inner: list[int] = []
    normal = normalize({"a": [{"b": inner}]})
    inner.append(1)
    assert normal == {"a": [{"b": []}]}


@pytest.mark.parametrize(
    ("value", "where", "reason"),
    [
        ({"radius_km": 9007199254740993}, "structure.radius_km", "9007199254740993 is not exactly a double"),
        ({"a": -9007199254740993}, "structure.a", "-9007199254740993 is not exactly a double"),
        ({"a": 2**60}, "structure.a", "1152921504606846976 is not exactly a double"),
        ({"a": 10**400}, "structure.a", "outside the range of a double"),
        ({"a": -(10**5000)}, "structure.a", "an integer of 16610 bits is outside the range of a double"),
        ({"a": [0, math.nan]}, "structure.a[1]", "nan is not a JSON number"),
        ({"a": {"b c": math.inf}}, "structure.a['b c']", "inf is not a JSON number"),
        ({"a": ["x", "\ud800"]}, "structure.a[1]", "lone surrogate U+D800"),
        ({"a": {"\udc00b": 1}}, "structure.a", "lone surrogate U+DC00"),
        ({"a": {3: 1}}, "structure.a", "the key 3 is not a string"),
        ({True: 1}, "structure", "the key true is not a string"),
        ({"a": b"bytes"}, "structure.a", "a value of type bytes is not JSON"),
        ({"a": {1, 2}}, "structure.a", "a value of type set is not JSON"),
        ({"": object()}, "structure['']", "a value of type object is not JSON"),
    ],
)
def test_a_refusal_names_place_and_value(value: object, where: str, reason: str) -> None:
    with pytest.raises(NotCanonical) as caught:
        normalize(value, "structure")
    assert caught.value.where == where
    assert reason in caught.value.reason
    assert str(caught.value) == f"{where}: {caught.value.reason}"
    str(caught.value).encode()


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_depth_counts_containers_from_the_outermost() -> None:
    normalize(nested(100))
    normalize({"a": nested(99), "b": "text"})
    for deep in (nested(101), {"a": nested(100)}, nested(100_000)):
        with pytest.raises(NotCanonical, match="nested deeper than 100 levels") as caught:
            normalize(deep)
        assert len(str(caught.value)) < 200
    with pytest.raises(NotCanonical, match="nested deeper than 1 levels"):
        normalize([[]], depth_max=1)


def test_a_container_that_holds_itself_is_too_deep() -> None:
    loop: list[object] = []
    loop.append({"again": loop})
    with pytest.raises(NotCanonical, match="nested deeper"):
        normalize(loop)


# ---- JSON texts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1", 0.1),
        ("1188.3", 1188.3),
        ("1188.300", 1188.3),
        ("1e21", 1e21),
        ("1E+2", 100),
        ("-0", 0),
        ("-0.0", 0),
        ("0e99999999999999999999", 0),
        ("5e-324", 5e-324),
        ("1e-" + "0" * 5000 + "1", 0.1),
        ("0." + "0" * 5000, 0),
        ("1" + "0" * 308, 1e308),
        ("9007199254740992", 2.0**53),
        ("9007199254740991", 2**53 - 1),
        ("1152921504606847000", 2.0**60),
        ("0.30000000000000004", 0.1 + 0.2),
        (' {"a" : [ 1 , null ] } ', {"a": [1, None]}),
        ('"\\ud83d\\ude00"', "😀"),
    ],
)
def test_texts_that_are_read(text: str, expected: Json) -> None:
    assert same(parse_exact(text), expected)
    assert same(parse_exact(text.encode()), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9007199254740993", "'9007199254740993' is not exactly a double"),
        ("1152921504606846976", "is not exactly a double"),
        ("0.300000000000000041", "is not exactly a double"),
        ("1.0000000000000000000001", "is not exactly a double"),
        ("333333333.33333329", "is not exactly a double"),
        ("1e-400", "is not exactly a double"),
        ("4.9e-324", "is not exactly a double"),
        ("1e400", "outside the range of a double"),
        ("-1e309", "outside the range of a double"),
        ("1e99999999999999999999", "outside the range of a double"),
        ("1e-99999999999999999999", "outside the range of a double"),
        ("9" * 5000, "outside the range of a double"),
        ("-" + "9" * 5000, "outside the range of a double"),
        ("9" * 300, "is not exactly a double"),
        ('{"a": [1, NaN]}', "$.a[1]: NaN is not a JSON number"),
        ("[-Infinity]", "$[0]: -Infinity is not a JSON number"),
        ('{"a": {"b": 1, "b": 1}}', "$.a: the key 'b' is given twice"),
        ('{"a": 1, "\\u0061": 2}', "$: the key 'a' is given twice"),
        ('["\\ud800"]', "$[0]: '\\ud800' has the lone surrogate U+D800"),
        ('{"\\udfff": 1}', "$: '\\udfff' has the lone surrogate U+DFFF"),
        ("", "$: not JSON"),
        ("{", "$: not JSON"),
        ("01", "$: not JSON"),
        ("1.", "$: not JSON"),
        ("[1] x", "$: not JSON"),
        ('"\n"', "$: not JSON"),
        ("\ufeff1", "$: not JSON"),
        ("[" * 129 + "]" * 129, "nested deeper than 128 levels"),
        ("[" * 200_000, "nested deeper than 128 levels"),
        ('{"a":' * 200_000, "nested deeper than 128 levels"),
    ],
)
def test_texts_that_are_refused(text: str, message: str) -> None:
    for given_text in (text, text.encode()):
        with pytest.raises(NotCanonical) as caught:
            parse_exact(given_text)
        assert message in str(caught.value)
        assert len(str(caught.value)) < 400


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(NotCanonical, match="not UTF-8 at byte 2"):
        parse_exact(b'["\xff"]')
    with pytest.raises(NotCanonical, match="not UTF-8 at byte 1"):
        parse_exact(b'"\xed\xa0\x80"')
    with pytest.raises(NotCanonical, match="not UTF-8"):
        parse_exact('"ä"'.encode("utf-16"))


@settings(deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_a_written_number_is_kept_or_refused_but_never_changed(number: Decimal) -> None:
    try:
        value = parse_exact(str(number))
    except NotCanonical:
        return
    assert isinstance(value, int | float)
    assert Decimal(number_text(value)) == number


@settings(deadline=None)
@given(st.integers())
def test_an_integer_is_kept_or_refused_but_never_changed(number: int) -> None:
    try:
        value = normalize(number)
    except NotCanonical:
        assert abs(number) > 2**53
        return
    assert abs(number) >= 10**21 or canonical(value) == str(number).encode()
    assert same(parse_exact(str(number)), value)


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60))
def test_any_input_is_read_or_refused(text: bytes | str) -> None:
    try:
        value = parse_exact(text)
    except NotCanonical as refused:
        str(refused).encode()
    else:
        assert same(parse_exact(canonical(value)), value)


def test_a_bool_is_no_number_to_print() -> None:
    with pytest.raises(NotCanonical, match="true is not a number"):
        number_text(True)
    assert number_text(0.9) == "0.9"
    assert number_text(1.0) == number_text(1) == "1"
    with pytest.raises(NotCanonical, match="not exactly a double"):
        number_text(2**53 + 1)
