"""The document tools through the real server: answers in both forms, pages, hostile and wrong input."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest
from document_agents import publish, refused, serving, tell
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import Implementation, TextContent, TextResourceContents

BASE = "# Plan\n\n- one\n- two\n- three\n"
NUMBERS = count()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def db_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("documents") / "cks.db")


@pytest.fixture(scope="module")
async def client(db_path: str) -> AsyncIterator[Client]:
    async with serving(db_path, client_info=Implementation(name="tester", version="1")) as client:
        yield client


@pytest.fixture
def path() -> str:
    return f"/tests/{next(NUMBERS)}.md"


async def test_the_tools_are_listed_with_what_they_do(client: Client) -> None:
    listed = {tool.name: tool for tool in (await client.list_tools()).tools if tool.name.startswith("mark_")}
    assert sorted(listed) == [
        "mark_append",
        "mark_archive",
        "mark_fetch",
        "mark_list",
        "mark_publish",
        "mark_versions",
    ]
    reading = {name for name, tool in listed.items() if tool.annotations and tool.annotations.read_only_hint}
    assert reading == {"mark_fetch", "mark_list", "mark_versions"}
    required = {name: tool.input_schema.get("required", []) for name, tool in listed.items()}
    assert required["mark_publish"] == ["path", "body", "expected_version"]
    assert required["mark_list"] == []
    assert all(tool.output_schema and tool.description for tool in listed.values())


async def test_publish_and_fetch(client: Client, path: str) -> None:
    first = await tell(client, "mark_publish", path=path, body=BASE, expected_version=0)
    assert list(first.head) == ["status", "version", "modified", "content-hash"] and first.body is None
    assert first.content["version"] == 1 and first.head["content-hash"].startswith("sha256-")
    read = await tell(client, "mark_fetch", path=path)
    assert read.body == BASE and read.head == first.head
    again = await tell(client, "mark_publish", path=path, body=BASE, expected_version=0)
    assert again.head == first.head and again.content["no_op"] is True
    assert (await publish(client, path, BASE + "- four\n", 1))["version"] == 2
    old = await tell(client, "mark_fetch", path=f"{path}/v1")
    assert old.body == BASE and old.head == first.head
    assert read.content["author"].startswith("tester@")


async def test_archiving(client: Client, path: str) -> None:
    await publish(client, path, "one\n", 0)
    told = await tell(client, "mark_archive", path=path)
    assert told.head == {"status": "ok", "version": "2", "archived": "true"}
    assert (await tell(client, "mark_archive", path=path)).content["no_op"] is True
    read = await tell(client, "mark_fetch", path=path)
    assert read.head == {"status": "archived", "version": "2"} and read.body is None
    for tool, more in (("mark_publish", {"expected_version": 1}), ("mark_append", {})):
        told = await tell(client, tool, path=path, body="x", **more)
        assert told.head == {"status": "archived", "version": "2"}
    with pytest.raises(MCPError, match="archived"):
        await client.read_resource(f"doc://{path}")
    told = await tell(client, "mark_archive", path=path, unarchive=True)
    assert told.head == {"status": "ok", "version": "3", "archived": "false"}
    assert (await tell(client, "mark_fetch", path=path)).body == "one\n"
    await tell(client, "mark_archive", path=path)
    assert (await publish(client, path, "one\n", 4))["version"] == 5


async def test_appending(client: Client, path: str) -> None:
    await publish(client, path, "# Log", 0)
    told = await tell(client, "mark_append", path=path, body="- one\n")
    assert list(told.head) == ["status", "version", "modified", "content-hash"]
    told = await tell(client, "mark_append", path=path, body="- lost\n", expected_version=1)
    assert told.head == {"status": "conflict", "your-version": "1", "current-version": "2"}
    await tell(client, "mark_append", path=path, body="- two\n", expected_version=2)
    assert (await tell(client, "mark_fetch", path=path)).body == "# Log\n- one\n- two\n"


async def test_windows_of_lines(client: Client, path: str) -> None:
    await publish(client, path, "a\rb\nc\u2028d\n\ne", 0)
    told = await tell(client, "mark_fetch", path=path, from_line=2, max_lines=2)
    assert told.body == "c\u2028d\n\n"
    assert (told.head["from-line"], told.head["lines"], told.head["total-lines"]) == ("2", "2", "4")
    assert (await tell(client, "mark_fetch", path=path, from_line=4)).body == "e"
    assert (await tell(client, "mark_fetch", path=path, max_lines=1)).body == "a\rb\n"
    assert (await tell(client, "mark_fetch", path=path, from_line=9)).body == ""


async def test_history_and_lists_come_in_pages(client: Client, path: str) -> None:
    for number in range(5):
        await publish(client, path, f"text {number}", number, author=f"agent {number}")
    await tell(client, "mark_archive", path=path)
    seen: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        told = await tell(client, "mark_versions", path=path, limit=4, **cursor)
        assert told.head["current"] == "6" and told.head["chain-valid"] == "true"
        seen += told.content["versions"]
        if "next_cursor" not in told.content:
            break
        cursor = {"cursor": told.content["next_cursor"]}
    assert [one["version"] for one in seen] == [6, 5, 4, 3, 2, 1]
    assert [one["archived"] for one in seen] == [True, *[False] * 5]
    assert [one["hash"] for one in seen[1:]] + [None] == [one["previous_hash"] for one in seen]
    assert seen[1]["author"] == "agent 4" and seen[0]["content_hash"] == seen[1]["content_hash"]
    for name in ("a", "b", "c"):
        await publish(client, f"{path}.{name}", "x", 0)
    first = await tell(client, "mark_list", prefix=path, limit=2)
    second = await tell(client, "mark_list", prefix=path, cursor=first.content["next_cursor"])
    paths = [*first.content["paths"], *second.content["paths"]]
    assert [one["path"] for one in paths] == [path, f"{path}.a", f"{path}.b", f"{path}.c"]
    assert [one["archived"] for one in paths] == [True, False, False, False]
    assert "next_cursor" not in second.content
    error = await refused(client, "mark_versions", path=path, cursor=first.content["next_cursor"])
    assert (error["code"], error["details"]["argument"]) == ("invalid_parameter", "cursor")


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\n\n",
        "a\r\nb\r\n",
        "a\rb\x85c\u2028d\u2029e\x0bf\x0cg",
        "\ufeff\x00\x1b\x7f",
        "\n\nstatus: ok\n\nx",
    ],
    ids=ascii,
)
async def test_text_comes_back_byte_for_byte(client: Client, path: str, body: str) -> None:
    await publish(client, path, body, 0)
    assert (await tell(client, "mark_fetch", path=path)).body == body
    (contents,) = (await client.read_resource(f"doc://{path}")).contents
    assert isinstance(contents, TextResourceContents)
    assert (contents.text, contents.mime_type) == (body, "text/markdown")


async def test_a_mebibyte_goes_both_ways_and_is_never_sent_twice(client: Client, path: str) -> None:
    line = "0123456789 é\n"
    whole = line * ((1 << 20) // len(line.encode()))
    await publish(client, path, whole, 0)
    result = await client.call_tool("mark_fetch", {"path": path})
    (block,) = result.content
    assert isinstance(block, TextContent) and block.text.endswith(whole)
    assert len(json.dumps(result.structured_content)) < 2000
    await publish(client, path, "head\n" + whole[len(line) :], 1)
    told = await tell(client, "mark_publish", path=path, body=whole + "x", expected_version=1)
    assert told.body == "head\n" + whole[len(line) :] + "x"
    error = await refused(client, "mark_publish", path=path, body=whole + "x" * 20, expected_version=2)
    assert error["code"] == "too_large" and error["details"]["bytes_max"] == 1 << 20


HOSTILE = [
    "",
    "/",
    "etc/passwd",
    "/../etc/passwd",
    "/a/../../etc/passwd",
    "/a/./b",
    "/a//b",
    "/a/",
    "/%2e%2e/etc/passwd",
    "/%2E%2E%2Fetc%2Fpasswd",
    "/..%2f..%2fetc/passwd",
    "/..%5c..%5cwindows",
    "/..\\..\\windows",
    "\\\\server\\share",
    "/a%00.md",
    "/a\x00.md",
    "/a\r\nstatus: ok",
    "/a\x9b",
    "file:///etc/passwd",
    "doc:///a",
    "/a/v0",
    "/a/v01",
    "/v1/a",
    "/" + "x" * 1025,
    "/" + "../" * 300 + "etc/passwd",
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda path: ascii(path)[:30])
async def test_hostile_paths_are_refused_by_every_tool(client: Client, hostile: str) -> None:
    for tool, more in (
        ("mark_fetch", {}),
        ("mark_publish", {"body": "x", "expected_version": 0}),
        ("mark_append", {"body": "x"}),
        ("mark_versions", {}),
        ("mark_archive", {}),
    ):
        error = await refused(client, tool, path=hostile, **more)
        assert (error["code"], error["details"]) == ("invalid_parameter", {"argument": "path"}), tool
        assert "\n" not in error["message"] and len(error["message"]) < 400


@pytest.mark.parametrize(
    "uri",
    [
        "doc:///../etc/passwd",
        "doc:///%2e%2e/etc/passwd",
        "doc:///..%2f..%2fetc%2fpasswd",
        "doc:///..%5c..%5cwindows",
        "doc:///%252e%252e/etc/passwd",
        "doc:///a%00.md",
        "doc:///a%0d%0ab",
        "doc:///%c0%ae%c0%ae/etc/passwd",
        "doc:///a/v0",
        "doc://etc/passwd",
        "doc://",
        "doc:////etc/passwd",
        "file:///etc/passwd",
        "doc:///" + "x" * 5000,
    ],
    ids=lambda uri: ascii(uri)[:40],
)
async def test_hostile_uris_read_nothing(client: Client, uri: str) -> None:
    with pytest.raises(MCPError) as caught:
        await client.read_resource(uri)
    assert caught.value.error.data["code"] in ("invalid_parameter", "document_not_found", "object_not_found")


async def test_wrong_arguments_are_named(client: Client, path: str) -> None:
    await publish(client, path, "x", 0)
    for tool, arguments, argument in (
        ("mark_publish", {"path": path, "body": "x"}, "expected_version"),
        ("mark_publish", {"path": path, "body": "x", "expected_version": -1}, "expected_version"),
        ("mark_publish", {"path": path, "body": "x", "expected_version": "1"}, "expected_version"),
        ("mark_publish", {"path": path, "body": None, "expected_version": 1}, "body"),
        (
            "mark_publish",
            {"path": path, "body": "y", "expected_version": 1, "on_conflict": "x"},
            "on_conflict",
        ),
        ("mark_publish", {"path": path, "body": "y", "expected_version": 1, "author": "a\nb"}, "author"),
        ("mark_fetch", {"path": path, "from_line": 0}, "from_line"),
        ("mark_fetch", {"path": path, "max_lines": 0}, "max_lines"),
        ("mark_list", {"limit": 501}, "limit"),
        ("mark_list", {"prefix": "/\x00"}, "prefix"),
        ("mark_archive", {"path": path, "unarchive": "yes"}, "unarchive"),
    ):
        error = await refused(client, tool, **arguments)
        assert (error["code"], error["details"]["argument"]) == ("invalid_parameter", argument), arguments
    for tool, more in (
        ("mark_fetch", {}),
        ("mark_append", {"body": "x"}),
        ("mark_publish", {"body": "x", "expected_version": 3}),
        ("mark_versions", {}),
        ("mark_archive", {}),
    ):
        assert (await refused(client, tool, path="/no/such", **more))["code"] == "document_not_found"
    assert (await refused(client, "mark_fetch", path=f"{path}/v2"))["code"] == "version_not_found"
