"""A real server process over stdio: malformed input, slow tools, and every way to end."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.subscriptions import ResourceUpdated

sys.path.insert(0, str(Path(__file__).parent))

from wire import ECHO_SERVER, Wire

CASES = json.loads((Path(__file__).parent.parent / "golden/mcp_lines.json").read_text())["cases"]


def line_of(case: dict[str, Any]) -> bytes:
    if "fill" in case:
        fill = case["fill"]
        text: str = fill["prefix"] + fill["char"] * fill["count"] + fill["suffix"]
        return text.encode()
    return base64.b64decode(case["line_base64"])


def tool_call(arguments: bytes, name: bytes = b"validate_knowledge") -> bytes:
    return (
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"'
        + name
        + b'","arguments":'
        + arguments
        + b"}}\n"
    )


@pytest.fixture(scope="module")
def server() -> Iterator[Wire]:
    with Wire(ECHO_SERVER) as wire:
        yield wire.start()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_ping_after_a_malformed_line_is_answered(server: Wire, case: dict[str, Any]) -> None:
    server.send(line_of(case))
    replies = server.ping()
    if case["id"] == "crlf-blank":
        assert replies == []
    for reply in replies:
        assert reply["id"] in (7, None)
        assert "error" in reply or reply["result"]["isError"]
    ids = [reply["id"] for reply in replies]
    assert ids.count(7) == (1 if b'"id":7' in line_of(case).replace(b": ", b":") else 0)


KIN: list[tuple[str, bytes, list[Any]]] = [
    ("bad-utf8", b"\xff\xfe\xfd\n", [None]),
    ("bad-utf8-in-call", tool_call(b'{"knowledge":{"a":"\xff"}}'), [7]),
    ("utf8-surrogate", tool_call(b'{"knowledge":{"a":"\xed\xa0\x80"}}'), [7]),
    ("null-bytes", b"\x00\x00\n", [None]),
    ("number", b"-0.5e3\n", [None]),
    ("null", b"null\n", [None]),
    ("id-nan-params", b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":NaN}}\n', [7]),
    ("id-null", b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', [None]),
    ("id-list", b'{"jsonrpc":"2.0","id":[7],"method":"ping"}\n', [None]),
    ("params-null", b'{"jsonrpc":"2.0","id":7,"method":"ping","params":null}\n', [7]),
    ("params-text", b'{"jsonrpc":"2.0","id":7,"method":"tools/list","params":"x"}\n', [7]),
    ("meta-text", b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":"x"}}\n', [7]),
    ("unknown-method", b'{"jsonrpc":"2.0","id":7,"method":"no/such"}\n', [7]),
    ("method-surrogate", b'{"jsonrpc":"2.0","id":7,"method":"\\ud800"}\n', [7]),
    ("wrong-version", b'{"jsonrpc":"1.0","id":7,"method":"ping"}\n', [7]),
    ("name-number", b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":5}}\n', [7]),
    ("name-missing", b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{}}\n', [7]),
    ("call-without-params", b'{"jsonrpc":"2.0","id":7,"method":"tools/call"}\n', [7]),
    ("arguments-null", tool_call(b"null", b"counts"), [7]),
    ("arguments-list", tool_call(b"[1]", b"counts"), [7]),
    ("arguments-text", tool_call(b'"{}"', b"counts"), [7]),
    ("int-5000-digits", tool_call(b'{"knowledge":' + b"9" * 5000 + b"}"), [7]),
    ("deep", tool_call(b'{"knowledge":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), [7]),
    ("deep-objects", tool_call(b'{"knowledge":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"), [7]),
    ("deep-first", b"[" * 100_000 + b"\n", [None]),
    ("two-megabytes", b"x" * 2_000_000 + b"\n", [None]),
    ("two-megabytes-of-quotes", b'{"id":7,"' + b'\\"' * 1_000_000 + b"\n", [7]),
    ("too-large-for-the-tool", tool_call(b'{"knowledge":{"a":"' + b"x" * 5_000_000 + b'"}}'), [7]),
    ("too-large-to-read", tool_call(b'{"knowledge":{"a":"' + b"x" * 11_000_000 + b'"}}'), [7]),
    ("batch", b'[{"jsonrpc":"2.0","id":7,"method":"ping"},{"jsonrpc":"2.0","method":"x"}]\n', [7]),
    ("duplicate-keys", tool_call(b'{"knowledge":{},"knowledge":{}}'), [7]),
    ("content-length", b'Content-Length: 40\r\n\r\n{"jsonrpc":"2.0","id":7,"method":"ping"}', [None, 7]),
    ("notification", b'{"jsonrpc":"2.0","method":"notifications/no-such"}\n', []),
    ("notification-params", b'{"jsonrpc":"2.0","method":"notifications/initialized","params":[1]}\n', []),
    ("notification-null", b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":null}\n', []),
    (
        "notification-cancelled",
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}\n',
        [],
    ),
    ("notification-nan", b'{"jsonrpc":"2.0","method":"x","params":{"a":NaN}}\n', []),
    ("stray-answer", b'{"jsonrpc":"2.0","id":7,"result":{}}\n', []),
    ("stray-error", b'{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"x"}}\n', []),
    ("malformed-answer", b'{"jsonrpc":"2.0","id":7,"result":5}\n', []),
    ("blank", b"\r\n \n\n", []),
]


@pytest.mark.parametrize(("data", "ids"), [case[1:] for case in KIN], ids=[case[0] for case in KIN])
def test_each_kind_of_broken_line_gets_its_replies(server: Wire, data: bytes, ids: list[Any]) -> None:
    server.send(data)
    replies = server.ping()
    assert [reply["id"] for reply in replies] == ids
    for reply in replies:
        assert reply.get("result") == {} or "error" in reply or reply["result"]["isError"]


def test_wrong_arguments_and_sizes_come_in_our_own_form(server: Wire) -> None:
    server.send(tool_call(b"null", b"counts"))
    error = server.read()["result"]["structuredContent"]
    assert error["code"] == "invalid_parameter" and error["details"]["argument"] == "arguments"
    server.send(tool_call(b'{"knowledge":{"a":"' + b"x" * 5_000_000 + b'"}}'))
    error = server.read()["result"]["structuredContent"]
    assert error["code"] == "too_large" and error["details"]["bytes_max"] == 5_000_000
    server.send(tool_call(b'{"knowledge":{"a":"' + b"x" * 11_000_000 + b'"}}'))
    assert server.read()["error"]["data"]["code"] == "too_large"


def test_values_are_passed_on_unaltered(server: Wire) -> None:
    value = {"text": "5", "json": '{"a": [1]}', "int": 5, "zero": -0.0, "big": 2**60, "n": None, "t": True}
    result = server.call("validate_knowledge", {"knowledge": {"back": value}})
    assert result["structuredContent"]["value"] == value


def test_nothing_stray_reaches_the_wire(server: Wire) -> None:
    assert server.call("fail", {"how": "print"})["structuredContent"] == {}
    assert server.ping() == []


def mutate(rng: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(4):
            case 0:
                made[at:at] = rng.randbytes(rng.randint(1, 4))
            case 1:
                del made[at : at + rng.randint(1, 10)]
            case 2:
                made[at : at + 1] = rng.choice(
                    [b'"', b"{", b"}", b"[", b"]", b"\\", b"\x00", b"\xff", b"9" * 400]
                )
            case _:
                made[at:at] = made[: rng.randint(0, 40)]
    return bytes(made)


def test_fuzzed_lines(server: Wire) -> None:
    """1,500 seeded lines, more with FUZZ_LINES; a newline keeps each from touching the next."""
    rng = random.Random(20_260_728)
    seeds = [line_of(case)[:400] for case in CASES] + [case[1][:400] for case in KIN]
    for number in range(int(os.environ.get("FUZZ_LINES", "1500"))):
        server.send(mutate(rng, rng.choice(seeds)) + b"\n")
        if number % 50 == 49:
            server.ping()


def test_a_slow_tool_delays_nobody_and_can_be_cancelled(server: Wire) -> None:
    before = server.call("counts")["structuredContent"]
    slow = [server.request("tools/call", {"name": "nap", "arguments": {"seconds": 30}}) for _ in range(20)]
    started = time.monotonic()
    assert server.ping() == []
    assert time.monotonic() - started < 1.0  # 0.1 s on a quiet machine
    for request_id in slow:
        server.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
        )
    deadline = time.monotonic() + 5
    while server.call("counts")["structuredContent"]["cancelled"] < before["cancelled"] + len(slow):
        assert time.monotonic() < deadline
    assert server.ping() == []


def test_a_client_that_reads_slowly_gets_everything(server: Wire) -> None:
    wanted = [
        server.request("tools/call", {"name": "document", "arguments": {"items": 90_000}}) for _ in range(40)
    ]
    time.sleep(0.5)
    got = [server.read() for _ in wanted]
    assert sorted(message["id"] for message in got) == wanted
    assert all(len(message["result"]["content"][0]["text"]) == 90_000 for message in got)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    trace = tmp_path / "trace"
    with Wire([*ECHO_SERVER, str(trace)]) as wire:
        wire.start()
        nap = wire.request("tools/call", {"name": "nap", "arguments": {"seconds": 30}})
        wire.ping()
        wire.process.send_signal(number)
        assert wire.read()["id"] == nap
        assert wire.rest() == b""
        assert wire.end() == 0
    assert trace.read_text() == "closed naps=1 cancelled=1\n"


def test_a_signal_during_the_start_ends_it(tmp_path: Path) -> None:
    for wait in (0.05, 1.5):
        with Wire(ECHO_SERVER, environment={"ECHO_START": "30"}) as wire:
            time.sleep(wait)
            wire.process.send_signal(signal.SIGTERM)
            code = wire.process.wait(5)
            # Before its first line has run, Python itself dies of the signal.
            assert code == 0 or (wait < 1 and code == -signal.SIGTERM)


def test_the_end_of_input_ends_it_after_its_answers(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with Wire([*ECHO_SERVER, str(trace)]) as wire:
        wire.start()
        short = wire.request("tools/call", {"name": "nap", "arguments": {"seconds": 0.3}})
        last = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
        wire.send(last)
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        replies = {message["id"]: message for message in (wire.read(), wire.read())}
        assert replies[7]["result"] == {} and not replies[short]["result"]["isError"]
        assert wire.end() == 0
    assert trace.read_text() == "closed naps=1 cancelled=0\n"


def test_the_end_of_input_does_not_wait_for_ever() -> None:
    with Wire(ECHO_SERVER) as wire:
        wire.start()
        nap = wire.request("tools/call", {"name": "nap", "arguments": {"seconds": 30}})
        wire.ping()
        assert wire.process.stdin is not None
        wire.process.stdin.close()
        assert wire.read()["id"] == nap
        assert wire.end() == 0


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    parent = f"""
import subprocess, sys, time
child = subprocess.Popen({[*ECHO_SERVER, str(trace)]!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdin.write(b'{{"jsonrpc":"2.0","id":1,"method":"ping"}}\\n')
child.stdin.flush()
child.stdout.readline()
print("up", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        process.kill()
    deadline = time.monotonic() + 5
    while not trace.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_ends_when_nobody_reads_its_output() -> None:
    with Wire(ECHO_SERVER) as wire:
        wire.start()
        assert wire.process.stdout is not None
        wire.process.stdout.close()
        wire.request("ping")
        assert wire.process.wait(5) == 0


def test_a_client_that_stopped_reading_cannot_hold_it() -> None:
    with Wire(ECHO_SERVER) as wire:
        wire.start()
        for _ in range(60):
            wire.request("tools/call", {"name": "document", "arguments": {"items": 90_000}})
        time.sleep(0.5)
        wire.process.send_signal(signal.SIGTERM)
        assert wire.process.wait(5) == 0


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_client_of_the_sdk(mode: str) -> None:
    parameters = StdioServerParameters(command=ECHO_SERVER[0], args=ECHO_SERVER[1:])
    async with Client(parameters, mode=mode) as client:
        result = await client.call_tool("say", {"text": "x", "count": 3})
        assert result.structured_content is not None and result.structured_content["text"] == "xxx"
        with anyio.move_on_after(0.3):
            await client.call_tool("nap", {"seconds": 30})
        with anyio.fail_after(5):
            while not (await counts(client))["cancelled"]:  # noqa: ASYNC110 (it is another process)
                await anyio.sleep(0.01)
        if mode == "auto":
            async with client.listen(resource_subscriptions=["cks://counts"]) as events:
                await client.call_tool("touch", {"uri": "cks://counts"})
                with anyio.fail_after(5):
                    assert await anext(aiter(events)) == ResourceUpdated("cks://counts")


async def counts(client: Client) -> dict[str, Any]:
    result = await client.call_tool("counts", {})
    assert result.structured_content is not None
    return result.structured_content


def test_logs_that_nobody_reads_do_not_stop_it() -> None:
    with Wire(ECHO_SERVER, stderr=subprocess.PIPE) as wire:
        wire.start()
        for _ in range(2000):
            wire.send(b"NOT JSON\n")
            wire.read()
        assert wire.ping() == []


def test_input_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\nNOT JSON')
    with path.open("rb") as file, Wire(ECHO_SERVER, stdin=file) as wire:
        replies = sorted((wire.read(60), wire.read(60)), key=lambda message: "error" in message)
        assert (
            replies[0] == {"jsonrpc": "2.0", "id": 1, "result": {}} and replies[1]["error"]["code"] == -32700
        )
        assert wire.end() == 0


def test_a_closed_input_is_an_end() -> None:
    with Wire(ECHO_SERVER, stdin=subprocess.DEVNULL) as wire:
        assert wire.process.wait(60) == 0
