"""Lines of the stdio transport: what each kind of line becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from cks_mcp.lines import Drop, Refusal, decode_line, encode_message, refuse_long

PING: dict[str, Any] = {"jsonrpc": "2.0", "id": 7, "method": "ping"}


def line(**changes: Any) -> bytes:
    return json.dumps({**PING, **changes}).encode() + b"\n"


def only(data: bytes) -> Any:
    (found,) = decode_line(data)
    return found


def test_a_request_and_a_notification() -> None:
    assert only(line()) == JSONRPCRequest(jsonrpc="2.0", id=7, method="ping")
    assert only(b'{"jsonrpc":"2.0","method":"notifications/initialized"}') == JSONRPCNotification(
        jsonrpc="2.0", method="notifications/initialized"
    )
    assert isinstance(only(b'{"jsonrpc":"2.0","id":1,"result":{}}'), JSONRPCResponse)


@pytest.mark.parametrize("blank", [b"", b"\n", b"\r\n", b"  \t ", b"\xef\xbb\xbf\n", b"\x0c"])
def test_blank_lines_hold_nothing(blank: bytes) -> None:
    assert decode_line(blank) == []


def test_values_side_by_side_are_taken_one_by_one() -> None:
    junk, ping = decode_line(b"{}" + line())
    assert isinstance(junk, Refusal) and junk.id is None
    assert isinstance(ping, JSONRPCRequest)


def test_a_byte_order_mark_is_no_fault() -> None:
    assert isinstance(only(b"\xef\xbb\xbf" + line()), JSONRPCRequest)


DEEP = b"[" * 100_000
REFUSED: list[tuple[bytes, Any]] = [
    (b"NOT JSON", None),
    (b"123", None),
    (b'"hi"', None),
    (b"null", None),
    (b"true", None),
    (b"[]", None),
    (b"{}", None),
    (b"[1, 2]", None),
    (line(id=None), None),
    (line(id=True), None),
    (line(id=1.5), None),
    (line(id={}), None),
    (line(id=[7]), None),
    (line(jsonrpc="1.0"), 7),
    (line(jsonrpc=2), 7),
    (line(method=5), 7),
    (line(method=None), 7),
    (line(method="\ud800"), 7),
    (line(params=[1]), 7),
    (line(params=None), 7),
    (line(params="x"), 7),
    (line(params=5), 7),
    (line(id="\ud800"), "\ud800"),
    (b'{"id": 7}', 7),
    (b'{"jsonrpc":"2.0","id":NaN,"method":"ping"}', None),
    (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":NaN}}', 7),
    (b'{"jsonrpc":"2.0","method":"ping","params":{"a":-Infinity,"id":3},"id":"x"}', "x"),
    (b'{"jsonrpc":"2.0","id":' + b"9" * 5000 + b',"method":"ping"}', None),
    (b'{"jsonrpc":"2.0","id":7,"method":"\xff\xfe"}', 7),
    (b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}', None),
    (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"x', 7),
    (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"a":' + DEEP, 7),
    (b'{"jsonrpc":"2.0","method":"x","params":{"a":' + DEEP + b"]" * 100_000 + b'},"id":7}', 7),
    (DEEP, None),
    (b'{"a":' * 100_000, None),
    (b'{"jsonrpc":"2.0","id":7,"id":8,"method":"ping"}', 7),
    (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":1,"a":2}}', 7),
    (b'{"params":{"id":5},"method":"ping"', None),
    (b'{"a":"\\"id\\":5,' + b'\\"' * 300_000, None),
    (b"\x00\x01\x02", None),
    ("{}".encode("utf-16"), None),
    (b'{"jsonrpc":"2.0","id":7,"method":"ping"}}', None),
]


@pytest.mark.parametrize(("data", "known_id"), REFUSED, ids=[repr(data[:50]) for data, _ in REFUSED])
def test_a_broken_line_is_refused_under_its_id(data: bytes, known_id: Any) -> None:
    refusal = decode_line(data)[-1]
    assert isinstance(refusal, Refusal)
    assert refusal.id == known_id
    answer = json.loads(encode_message(refusal.as_message()))
    assert answer["id"] == known_id and answer["error"]["code"] < 0 and "result" not in answer


DROPPED = [
    b'{"jsonrpc":"2.0","method":"notifications/x","params":[]}',
    b'{"jsonrpc":"2.0","method":"notifications/x","params":null}',
    b'{"jsonrpc":"2.0","method":5}',
    b'{"method":"notifications/x"}',
    b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":NaN}}',
    b'{"jsonrpc":"2.0","method":"notifications/\xff"}',
    b'{"jsonrpc":"2.0","id":1,"result":5}',
    b'{"jsonrpc":"2.0","id":1,"error":"x"}',
]


@pytest.mark.parametrize("data", DROPPED)
def test_a_malformed_notification_or_answer_gets_no_reply(data: bytes) -> None:
    assert isinstance(only(data), Drop)


def test_a_batch_is_refused_for_each_request_in_it() -> None:
    batch = [{**PING, "id": 1}, {"jsonrpc": "2.0", "method": "x"}, {**PING, "id": "b"}]
    assert [one.id for one in decode_line(json.dumps(batch).encode()) if isinstance(one, Refusal)] == [1, "b"]


def test_many_values_on_one_line_are_not_all_answered() -> None:
    assert len(decode_line(b"{}" * 100_000)) == 65
    assert len(decode_line(b"[" + b",".join([line().strip()] * 1000) + b"]")) == 64


def test_wide_integers_in_arguments_stay_for_the_tool_to_refuse() -> None:
    request = only(
        b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":' + b"9" * 5000 + b',"b":12345678901234567890}}'
    )
    assert request.params == {"a": float("inf"), "b": 12345678901234567890}


def test_values_reach_a_tool_as_they_were_written() -> None:
    params = {"s": "5", "i": 5, "f": 5.0, "t": True, "n": None, "json": '{"a": 1}', "u": "\ud800"}
    request = only(line(params=params))
    assert request.params == params and type(request.params["f"]) is float


def test_a_line_that_was_cut_is_refused_under_its_id() -> None:
    refusal = refuse_long(line(params={"a": "x" * 100})[:80], 50)
    assert refusal.id == 7 and refusal.data is not None and refusal.data["code"] == "too_large"


def test_answers_are_one_line_of_valid_utf8() -> None:
    message = JSONRPCResponse(jsonrpc="2.0", id=1, result={"a": "\ud800\n", "big": 10**30, "n": float("nan")})
    data = encode_message(message)
    assert data.endswith(b"\n") and data.count(b"\n") == 1
    assert json.loads(data)["result"] == {"a": "\\ud800\n", "big": 10**30, "n": None}


@given(st.binary(max_size=300))
def test_any_bytes_decode_to_something(data: bytes) -> None:
    for item in decode_line(data):
        if isinstance(item, Refusal):
            json.loads(encode_message(item.as_message()))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters(), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]), json_values
    ),
    st.integers(0, 200),
    st.binary(max_size=3),
)
def test_broken_messages_decode_to_something(message: dict[str, Any], at: int, junk: bytes) -> None:
    data = json.dumps(message).encode()
    for broken in (data, data[:at], data[:at] + junk + data[at:]):
        for item in decode_line(broken):
            if isinstance(item, Refusal):
                json.loads(encode_message(item.as_message()))
