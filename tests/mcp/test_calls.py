"""Tool calls, resources and updates through the SDK's client, in both generations of the protocol."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import CallToolResult, ResourceUpdatedNotification
from pydantic import BaseModel, Field

sys.path.insert(0, str(Path(__file__).parent))

from echo_server import echo, make_server

from cks_mcp.answers import ANSWER_BYTES_MAX, PAGE_BYTES, Answer, Result, as_json, fitting, success
from cks_mcp.arguments import Args
from cks_mcp.calls import ToolContext, Tools, Toolset
from cks_mcp.plain import dump_json, shorten
from cks_mcp.schemas import input_schema, output_schema
from cks_mcp.trimming import trimmed

MODES = ["auto", "legacy"]


@pytest.fixture(params=MODES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    async with Client(make_server(), mode=request.param) as connected:
        yield connected


def size(result: CallToolResult) -> int:
    return len(dump_json(result.model_dump(by_alias=True, mode="json", exclude_none=True)))


async def failed(client: Client, name: str, arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert result.is_error and result.structured_content is not None
    assert set(result.structured_content) == {"code", "message", "hint", "details"}
    assert json.loads(result.content[0].text) == result.structured_content
    assert size(result) < ANSWER_BYTES_MAX
    return result.structured_content


async def test_a_result_comes_as_structure_and_as_text(client: Client) -> None:
    arguments = {"text": "hé", "count": 2, "ratio": 1, "places": [{"x": 1}], "from": "me"}
    result = await client.call_tool("say", arguments)
    assert not result.is_error and result.structured_content is not None
    assert result.structured_content["text"] == "héhé"
    assert result.structured_content["ratio"] == 1.0
    assert result.structured_content["client"] == "mcp"
    assert json.loads(result.content[0].text) == result.structured_content


async def test_fields_that_are_none_by_default_are_left_out(client: Client) -> None:
    result = await client.call_tool("say", {})
    assert result.structured_content is not None and "ratio" not in result.structured_content


WRONG: list[tuple[str, Any, str]] = [
    ("say", {"count": "5"}, "count"),
    ("say", {"count": True}, "count"),
    ("say", {"count": 5.5}, "count"),
    ("say", {"count": 0}, "count"),
    ("say", {"count": 501}, "count"),
    ("say", {"count": -(10**30)}, "count"),
    ("say", {"count": 10**400}, "count"),
    ("say", {"count": None}, "count"),
    ("say", {"count": [1]}, "count"),
    ("say", {"ratio": "1"}, "ratio"),
    ("say", {"ratio": True}, "ratio"),
    ("say", {"ratio": 1e999}, "ratio"),
    ("say", {"ratio": float("nan")}, "ratio"),
    ("say", {"flag": 1}, "flag"),
    ("say", {"flag": "true"}, "flag"),
    ("say", {"text": 5}, "text"),
    ("say", {"text": None}, "text"),
    ("say", {"text": {}}, "text"),
    ("say", {"text": "\ud800"}, "text"),
    ("say", {"text": "x" * 1_000_001}, "text"),
    ("say", {"mode": "other"}, "mode"),
    ("say", {"mode": 1}, "mode"),
    ("say", {"places": "[]"}, "places"),
    ("say", {"places": {}}, "places"),
    ("say", {"places": [{"x": "1"}]}, "places.0.x"),
    ("say", {"places": [{"x": 1}, {}]}, "places.1.x"),
    ("say", {"places": [{"x": 1, "z": 1}]}, "places.0.z"),
    ("say", {"places": [5]}, "places.0"),
    ("say", {"from_": "x"}, "from_"),
    ("say", {"unknown": 1}, "unknown"),
    ("say", {"\ud800": 1}, "arguments"),
    ("validate_knowledge", {}, "knowledge"),
    ("validate_knowledge", {"knowledge": "{}"}, "knowledge"),
    ("validate_knowledge", {"knowledge": []}, "knowledge"),
    ("validate_knowledge", {"knowledge": None}, "knowledge"),
    ("no_such_tool", {}, "name"),
    ("", {}, "name"),
    ("no\ud800such", {}, "name"),
]


@pytest.mark.parametrize(
    ("tool", "arguments", "named"), WRONG, ids=[f"{w[0]}-{shorten(w[2])}" for w in WRONG]
)
async def test_a_wrong_argument_is_named(tool: str, arguments: Any, named: str) -> None:
    # Straight to the registry: a client of the SDK cannot send some of these.
    error = await answer_to(tool, arguments)
    assert error["code"] == "invalid_parameter"
    assert error["details"]["argument"] == named
    assert named in error["message"] or named in ("name", "arguments")
    assert error["hint"]


async def answer_to(tool: str, arguments: Any) -> dict[str, Any]:
    answer = await Tools([echo]).call(tool, arguments, ToolContext(app=None))
    assert answer["isError"]
    dump_json(answer).decode("utf-8")
    found: dict[str, Any] = answer["structuredContent"]
    return found


@pytest.mark.parametrize("arguments", [None, [], "x", 5, True, "{}"])
async def test_arguments_must_be_an_object(arguments: Any) -> None:
    error = await answer_to("say", arguments)
    assert error["code"] == "invalid_parameter" and error["details"]["argument"] == "arguments"


@pytest.mark.parametrize("name", [None, 5, [], {}, True])
async def test_a_name_must_be_a_string(name: Any) -> None:
    error = await answer_to(name, {})
    assert error["code"] == "invalid_parameter" and error["details"]["argument"] == "name"


async def test_wrong_arguments_through_a_client(client: Client) -> None:
    error = await failed(client, "say", {"count": "5", "extra": 1})
    assert error["message"] == "argument 'count' must be an integer, but the string \"5\" was given"
    assert error["hint"] == "say takes text?, count?, ratio?, flag?, mode?, places?, from?."
    assert [one["argument"] for one in error["details"]["problems"]] == ["count", "extra"]
    error = await failed(client, "say", {"txt": "x"})
    assert error["message"] == "argument 'txt' is not known" and "Did you mean 'text'?" in error["hint"]
    error = await failed(client, "validate_knowlege", {})
    assert error["hint"] == "Did you mean 'validate_knowledge'?"
    error = await failed(client, "validate_knowledge", {"knowledge": '{"objects": []}'})
    assert error["hint"] == "Send the JSON itself, not a string that contains it."


@given(
    st.dictionaries(
        st.sampled_from(["text", "count", "ratio", "flag", "mode", "places", "from", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
            ),
            max_leaves=5,
        ),
        min_size=1,
    )
)
def test_any_arguments_give_an_answer_of_our_form(arguments: dict[str, Any]) -> None:
    async def run() -> None:
        answer = await Tools([echo]).call("say", arguments, ToolContext(app=None))
        data = json.loads(dump_json(answer))
        if data["isError"]:
            assert data["structuredContent"]["code"] == "invalid_parameter"

    anyio.run(run)


async def test_errors_of_ours_go_out_with_their_details(client: Client) -> None:
    error = await failed(client, "fail", {"how": "head_moved"})
    assert error == {
        "code": "head_moved",
        "message": "the head moved",
        "hint": "read again",
        "details": {"current_head": "ab" * 32},
    }
    assert (await failed(client, "fail", {"how": "group"}))["details"] == {"current_head": "cd" * 32}


@pytest.mark.parametrize("how", ["bug", "wrong_type", "bad_details"])
async def test_a_fault_of_ours_shows_an_id_and_nothing_else(
    client: Client, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        error = await failed(client, "fail", {"how": how})
    assert error["code"] == "internal_error"
    assert "hunter2" not in json.dumps(error) and "Traceback" not in json.dumps(error)
    assert error["details"]["error_id"] in caplog.text


async def test_answers_stay_under_the_limit(client: Client) -> None:
    for items in (1, 500, 1000, 1500, 2000, 2400):
        result = await client.call_tool("read_many", {"items": items})
        assert size(result) < ANSWER_BYTES_MAX
        assert not result.is_error and result.structured_content is not None
        assert len(result.structured_content["items"]) == items
        text = result.content[0].text
        assert (
            text.startswith("{") or text == f'The full answer is in structuredContent: items: "{items} items"'
        )


async def test_a_read_over_the_limit_is_refused_and_a_write_is_cut(client: Client) -> None:
    error = await failed(client, "read_many", {"items": 5000})
    assert error["code"] == "too_large" and error["details"]["bytes_max"] == ANSWER_BYTES_MAX
    result = await client.call_tool("write_many", {"items": 5000, "item_bytes": 100})
    assert not result.is_error and result.structured_content is not None
    assert result.structured_content["truncated"] is True
    assert ANSWER_BYTES_MAX * 0.7 < size(result) < ANSWER_BYTES_MAX


async def test_a_text_of_its_own_stands_alone_and_may_be_long(client: Client) -> None:
    result = await client.call_tool("document", {"items": 100_000})
    assert result.content[0].text == "z" * 100_000 and result.structured_content == {"keys": 100_000}


async def test_the_list_of_tools(client: Client) -> None:
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    say = listed["say"]
    assert say.annotations is not None and say.annotations.read_only_hint is True
    assert say.input_schema["additionalProperties"] is False and "title" not in json.dumps(say.input_schema)
    assert say.input_schema["properties"]["ratio"] == {"type": "number"}
    assert say.output_schema is not None and say.output_schema["required"] == ["text", "count", "client"]
    knowledge = listed["validate_knowledge"].input_schema
    assert knowledge["properties"]["knowledge"] == {"type": "object"} and knowledge["required"] == [
        "knowledge"
    ]
    assert listed["write_many"].annotations is not None and listed["write_many"].annotations.destructive_hint
    with pytest.raises(MCPError, match="without a cursor"):
        await client.list_tools(cursor="x")


async def test_resources(client: Client) -> None:
    assert [str(one.uri) for one in (await client.list_resources()).resources] == ["cks://counts"]
    templates = (await client.list_resource_templates()).resource_templates
    assert [one.uri_template for one in templates] == ["cks://sessions/{id}"]
    found = await client.read_resource("cks://sessions/abc")
    assert json.loads(found.contents[0].text) == {"keys": 3, "value": "abc"}  # type: ignore[union-attr]
    with pytest.raises(MCPError) as caught:
        await client.read_resource("cks://nowhere")
    assert caught.value.error.data["code"] == "object_not_found"
    with pytest.raises(MCPError) as caught:
        await client.read_resource("cks://sessions/bug")
    assert caught.value.error.data["code"] == "internal_error"
    assert "hunter2" not in caught.value.error.model_dump_json()


async def test_modern_clients_hear_of_changed_resources() -> None:
    async with Client(make_server()) as client:
        with anyio.fail_after(10):
            async with client.listen(resource_subscriptions=["cks://counts"]) as events:
                await client.call_tool("touch", {"uri": "cks://other"})
                await client.call_tool("touch", {"uri": "cks://counts"})
                assert await anext(aiter(events)) == ResourceUpdated("cks://counts")


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_older_clients_hear_of_what_they_subscribed_to() -> None:
    send, receive = anyio.create_memory_object_stream[str](10)

    async def keep(message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            send.send_nowait(str(message.params.uri))

    async with Client(make_server(), mode="legacy", message_handler=keep) as client, send, receive:
        await client.subscribe_resource("cks://counts")
        await client.subscribe_resource("cks://gone")
        await client.unsubscribe_resource("cks://gone")
        for uri in ("cks://gone", "cks://other", "cks://counts"):
            await client.call_tool("touch", {"uri": uri})
        with anyio.fail_after(10):
            assert await receive.receive() == "cks://counts"
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.WouldBlock):
            receive.receive_nowait()


async def test_declaring_tools_badly_is_an_error() -> None:
    group = Toolset("group")

    @group.tool(name="one")
    async def one(ctx: ToolContext[None], args: Nothing) -> Answer[Thing]:
        """One."""
        return Answer(Thing())

    assert group.tools["one"].result is Thing and group.tools["one"].description == "One."
    with pytest.raises(ValueError, match="declared twice"):
        group.tool(name="one")(one)
    with pytest.raises(ValueError, match="two toolsets"):
        Tools([group, group])
    with pytest.raises(TypeError, match="args: Model"):

        @group.tool()
        async def two(ctx: ToolContext[None], args: int) -> Thing:
            return Thing()


class Nothing(Args):
    pass


class Part(BaseModel):
    name: str
    note: str | None = None


class Thing(Result):
    part: Part | None = None
    parts: list[Part] = Field(default_factory=list)
    task: Part | None = Field(description="null when there is none")
    task_default: dict[str, Any] | None = None

    def __init__(self, **values: Any) -> None:
        super().__init__(**{"task": None, **values})


def test_results_become_json() -> None:
    free = {"a": None, "b": [1]}
    made = as_json(Thing(part=Part(name="x"), parts=[Part(name="y", note="z")], task_default=free))
    assert made == {
        "part": {"name": "x"},
        "parts": [{"name": "y", "note": "z"}],
        "task": None,
        "task_default": free,
    }
    assert as_json(Thing()) == {"parts": [], "task": None}


def test_schemas_are_small() -> None:
    schema = output_schema(Thing)
    assert "title" not in json.dumps(schema) and schema["type"] == "object"
    assert schema["properties"]["part"] == {"$ref": "#/$defs/Part"}
    assert schema["properties"]["task_default"] == {"type": "object"}
    assert {"type": "null"} in schema["properties"]["task"]["anyOf"]
    assert schema["required"] == ["task"]
    assert input_schema(Nothing) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_pages_fit() -> None:
    items = [{"text": "é" * 100}] * 1000
    count = fitting(items)
    assert 0 < count < 1000 and len(dump_json(items[:count])) <= PAGE_BYTES + 10
    answer = success(Answer(Free(items=items[:count])), trims=False)
    assert answer["content"][0]["text"].startswith("{")
    assert len(dump_json(answer)) < ANSWER_BYTES_MAX
    assert fitting(["x" * 100_000]) == 1 and fitting([]) == 0


class Free(Result):
    items: list[Any]


@given(
    st.dictionaries(
        st.text(max_size=3),
        st.lists(st.text(max_size=30), max_size=30) | st.text(max_size=300) | st.integers(),
        min_size=1,
        max_size=6,
    ),
    st.integers(400, 2000),
)
def test_trimming_fits_and_leaves_the_value_alone(value: dict[str, Any], budget: int) -> None:
    before = json.dumps(value)
    cut = trimmed(value, budget)
    assert json.dumps(value) == before
    assert len(dump_json(cut)) <= budget or len(dump_json(value)) <= budget
    assert cut is value or cut["truncated"] is True


def test_values_are_shown_short() -> None:
    assert shorten("x" * 200) == 'the string "' + "x" * 80 + '…"'
    assert shorten(10**100) == "a number of more than 77 digits"
    assert [shorten(one) for one in (None, True, {}, [], 5, 1.5)] == [
        "null",
        "true",
        "an object",
        "a list",
        "5",
        "1.5",
    ]
    assert "\n" not in shorten("a\nb") and shorten("\ud800") == 'the string "\\\\ud800"'
