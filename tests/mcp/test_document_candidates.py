"""Lost races through the real server: merge candidates, updates of resources, and eight agents at one document."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import anyio
import pytest
from document_agents import Agent, publish, serving, tell
from mcp import Client
from mcp.server.subscriptions import ResourceUpdated
from mcp_types import Implementation, ResourceUpdatedNotification, TextResourceContents

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


async def test_disjoint_edits_merge_without_markers(client: Client, path: str) -> None:
    await publish(client, path, BASE, 0)
    await publish(client, path, BASE + "- four\n", 1, author="ann")
    mine = BASE.replace("# Plan", "# The plan")
    told = await tell(client, "mark_publish", path=path, body=mine, expected_version=1)
    assert list(told.head.items())[:6] == [
        ("status", "merge-candidate"),
        ("your-version", "1"),
        ("current-version", "2"),
        ("publish-at-version", "2"),
        ("has-markers", "false"),
        ("base-version", "1"),
    ]
    assert told.body == mine + "- four\n"
    assert told.content["changes"] == {
        "ours": {"added": 1, "removed": 1},
        "theirs": {"added": 1, "removed": 0},
    }
    assert told.content["conflicts"] == [] and told.content["conflicts_total"] == 0
    assert [(one["version"], one["author"]) for one in told.content["intervening"]] == [(2, "ann")]
    assert (await tell(client, "mark_fetch", path=path)).body == BASE + "- four\n", "nothing was written"
    assert (await publish(client, path, told.body, 2))["version"] == 3


async def test_overlapping_edits_carry_markers_and_their_lines(client: Client, path: str) -> None:
    await publish(client, path, BASE, 0)
    await publish(client, path, BASE.replace("two", "zwei"), 1)
    told = await tell(client, "mark_publish", path=path, body=BASE.replace("two", "deux"), expected_version=1)
    assert told.head["has-markers"] == "true" and told.head["marker-width"] == "7"
    assert told.body == ("# Plan\n\n- one\n<<<<<<< ours\n- deux\n=======\n- zwei\n>>>>>>> theirs\n- three\n")
    assert told.content["has_markers"] is True and told.content["marker_width"] == 7
    assert told.content["conflicts"] == [
        {
            "candidate": {"first": 4, "last": 8},
            "base": {"first": 4, "last": 4},
            "ours": {"first": 4, "last": 4},
            "theirs": {"first": 4, "last": 4},
        }
    ]
    assert (await publish(client, path, BASE.replace("two", "2"), 2))["version"] == 3


async def test_markers_are_wider_than_those_in_the_text(client: Client, path: str) -> None:
    base = "<<<<<<<<< nine\n" + BASE
    await publish(client, path, base, 0)
    await publish(client, path, base.replace("two", "zwei"), 1)
    told = await tell(client, "mark_publish", path=path, body=base.replace("two", "deux"), expected_version=1)
    assert told.head["marker-width"] == "10" and f"{'<' * 10} ours\n" in (told.body or "")


async def test_a_head_that_moves_again_gives_another_candidate(client: Client, path: str) -> None:
    await publish(client, path, BASE, 0)
    await publish(client, path, BASE + "- four\n", 1)
    mine = BASE.replace("# Plan", "# The plan")
    first = await tell(client, "mark_publish", path=path, body=mine, expected_version=1)
    await publish(client, path, BASE.replace("one", "1") + "- four\n", 2)
    assert first.body is not None
    second = await tell(client, "mark_publish", path=path, body=first.body, expected_version=2)
    assert second.content["base_version"] == 2 and second.content["publish_at_version"] == 3
    assert second.body == mine.replace("one", "1") + "- four\n"


async def test_a_document_made_twice_has_the_empty_text_as_its_base(client: Client, path: str) -> None:
    await publish(client, path, "one\n", 0)
    told = await tell(client, "mark_publish", path=path, body="two\n", expected_version=0)
    assert told.content["base_version"] == 0 and told.content["has_markers"] is True
    assert told.content["intervening_total"] == 1


async def test_plain_conflicts(client: Client, path: str) -> None:
    await publish(client, path, "one\n", 0)
    await publish(client, path, "two\n", 1)
    told = await tell(
        client, "mark_publish", path=path, body="mine\n", expected_version=1, on_conflict="fail"
    )
    assert told.head == {"status": "conflict", "your-version": "1", "current-version": "2"}
    assert told.body is None
    for version in (3, 2**63, 10**30):
        told = await tell(client, "mark_publish", path=path, body="mine\n", expected_version=version)
        assert list(told.head) == ["status", "your-version", "current-version", "reason"]
        assert told.head["status"] == "conflict" and told.head["reason"] == "base-missing"
    assert (await publish(client, path, "two\n", 9))["status"] == "ok"


async def test_a_candidate_keeps_crlf_and_strange_line_separators(client: Client, path: str) -> None:
    base = "a\r\nb\x85\r\nc\u2028\r\nd\r\n"
    await publish(client, path, base, 0)
    await publish(client, path, base.replace("a", "A"), 1)
    told = await tell(client, "mark_publish", path=path, body=base.replace("d", "D"), expected_version=1)
    assert told.body == base.replace("a", "A").replace("d", "D")


async def test_an_answer_with_thousands_of_conflicts_stays_small(client: Client, path: str) -> None:
    def text(word: str) -> str:
        return "".join(f"keep {number}\n" * 5 + f"{word} {number}\n" for number in range(3000))

    await publish(client, path, text("base"), 0)
    await publish(client, path, text("theirs"), 1)
    result = await client.call_tool(
        "mark_publish", {"path": path, "body": text("ours"), "expected_version": 1}
    )
    content = result.structured_content
    assert content is not None and content["status"] == "merge-candidate"
    assert 0 < len(content["conflicts"]) < content["conflicts_total"] == 3000
    assert len(json.dumps(content)) < 40_000


async def test_resources_are_read_and_told_of_in_both_spellings(client: Client) -> None:
    templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
    assert "doc://{+path}" in templates
    path = "/tests/é ü.md"
    plain, quoted = f"doc://{path}", "doc:///tests/%C3%A9%20%C3%BC.md"
    await publish(client, path, "one", 0)
    for uri, text in ((plain, "one"), (quoted, "one\nx")):
        (contents,) = (await client.read_resource(uri)).contents
        assert isinstance(contents, TextResourceContents) and contents.text == text
        with anyio.fail_after(10):
            async with client.listen(resource_subscriptions=[uri]) as events:
                await tell(client, "mark_append", path=path, body="x")
                assert await anext(aiter(events)) == ResourceUpdated(uri)


@pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
async def test_older_clients_hear_of_another_process_s_publish(
    client: Client, db_path: str, path: str
) -> None:
    send, receive = anyio.create_memory_object_stream[str](10)

    async def keep(message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            send.send_nowait(str(message.params.uri))

    await publish(client, path, "one", 0)
    async with serving(db_path, mode="legacy", message_handler=keep) as older, send, receive:
        await older.subscribe_resource(f"doc://{path}")
        await publish(client, path, "two", 1)
        with anyio.fail_after(10):
            assert await receive.receive() == f"doc://{path}"


async def test_eight_agents_lose_no_line_that_was_published(client: Client, db_path: str, path: str) -> None:
    """Two server processes, four agents at each, 200 publishes of one document, candidates reviewed by a rule."""
    await publish(client, path, "# Shared\n", 0)
    async with serving(db_path) as other:
        agents = [
            Agent((client, other)[number % 2], f"agent{number}", path, random.Random(number))
            for number in range(8)
        ]
        async with anyio.create_task_group() as tasks:
            for agent in agents:
                tasks.start_soon(agent.work, 25)
        final = await tell(client, "mark_fetch", path=path)
        history = await tell(other, "mark_versions", path=path, limit=1)
    assert final.body is not None
    lines = final.body.splitlines()
    added = set().union(*(agent.added for agent in agents))
    removed = set().union(*(agent.removed for agent in agents))
    assert len(added) == 200 and removed
    assert added - removed <= set(lines), "a published line is gone"
    assert set(lines) <= added | {"# Shared"}, "a line nobody wrote"
    assert len(lines) == len(set(lines)), "a line stands twice"
    assert history.content["current"] == 201 and history.content["chain_valid"] is True
    assert sum(agent.candidates for agent in agents) > 20 and sum(agent.marked for agent in agents) > 0
