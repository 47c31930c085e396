"""Documents in the store: versions by compare-and-swap, appends that take turns, chains that show tampering."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from document_building import PLAN, made, runtime, text

from cks_runtime.flow.documents import Archived, Documents, Fetched, Lost, Stands
from cks_runtime.model.document_events import DocumentPublished
from cks_runtime.model.documents import BODY_BYTES_MAX
from cks_runtime.model.errors import (
    DocumentNotFound,
    InvalidParameter,
    TooLarge,
    VersionNotFound,
)
from cks_runtime.runtime import Runtime

STATEMENTS_MAX = 12

ODD_TEXTS = [
    "",
    "\n",
    "a\r\nb\r\n",
    "a\rb\x85c\u2028d\u2029e\x0bf\x0cg",
    "\ufeff# Title\x00\x1b[0m",
    "é e\u0301 \U0001f600",
    "no end",
    "---\nstatus: ok\n\n---\n",
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "file"])
def db_path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return ":memory:" if request.param == "memory" else str(tmp_path / "cks.db")


@pytest.fixture
async def rt(db_path: str) -> AsyncIterator[Runtime]:
    async with runtime(db_path) as opened:
        yield opened


@pytest.fixture
def docs(rt: Runtime) -> Documents:
    return rt.documents


async def test_versions_are_numbered_chained_and_told(rt: Runtime, docs: Documents) -> None:
    first = made(await docs.publish(PLAN, "one\n", 0, "ann"))
    second = made(await docs.publish(PLAN, "two\n", 1, "bob"))
    assert (first.version, first.previous, first.author) == (1, None, "ann")
    assert (second.version, second.previous) == (2, first.hash)
    assert second.at_ms > first.at_ms
    told = [event async for event in rt.journal.replay(types=[DocumentPublished])]
    assert [(e.path, e.version, e.author, e.hash) for e in told if isinstance(e, DocumentPublished)] == [
        (PLAN, 1, "ann", first.hash.hex()),
        (PLAN, 2, "bob", second.hash.hex()),
    ]
    assert await docs.versions(PLAN) == await docs.versions(PLAN, 50, None)
    chain = await docs.versions(PLAN)
    assert (chain.current, chain.versions, chain.error) == (2, (second, first), None)


async def test_an_event_reaches_the_bus_after_the_commit(rt: Runtime, docs: Documents) -> None:
    events = rt.bus.subscribe(DocumentPublished)
    await docs.publish(PLAN, "one\n", 0)
    with anyio.fail_after(5):
        event = await events.receive()
    assert isinstance(event, DocumentPublished) and (event.path, event.version) == (PLAN, 1)


async def test_a_lost_race_writes_nothing(docs: Documents) -> None:
    head = made(await docs.publish(PLAN, "one\n", 0))
    for expected in (0, 2, 2**70):
        assert await docs.publish(PLAN, "mine\n", expected) == Lost(head)
    assert await text(docs) == "one\n"


async def test_what_the_head_says_already_is_success_and_no_version(docs: Documents) -> None:
    await docs.publish(PLAN, "one\n", 0)
    head = made(await docs.publish(PLAN, "two\n", 1))
    for expected in (0, 1, 2, 9):
        assert await docs.publish(PLAN, "two\n", expected) == Stands(head, made=False)
    assert made(await docs.publish(PLAN, "one\n", 2)).content != head.content


async def test_documents_that_do_not_exist(docs: Documents) -> None:
    for call in (
        docs.publish(PLAN, "x", 1),
        docs.append(PLAN, "x"),
        docs.archive(PLAN),
        docs.archive(PLAN, unarchive=True),
        docs.fetch(PLAN),
        docs.fetch(PLAN, 1),
        docs.versions(PLAN),
    ):
        with pytest.raises(DocumentNotFound):
            await call
    assert await docs.page() == []


async def test_versions_are_fetched_by_number_and_by_path(docs: Documents) -> None:
    for number, body in enumerate(["one", "two", "three"]):
        await docs.publish(PLAN, body, number)
    for found in (await docs.fetch(PLAN, 2), await docs.fetch(f"{PLAN}/v2")):
        assert isinstance(found, Fetched) and (found.version.version, found.body) == (2, "two")
    for missing in ("v4", "v99999999999999999999", "v" + "9" * 5000):
        with pytest.raises(VersionNotFound) as caught:
            await docs.fetch(f"{PLAN}/{missing}")
        assert caught.value.details["current_version"] == 3
    assert await docs.text_at(PLAN, 1) == "one"
    assert await docs.text_at(PLAN, 4) is None


@pytest.mark.parametrize("body", ODD_TEXTS, ids=ascii)
async def test_text_is_kept_byte_for_byte(docs: Documents, body: str) -> None:
    assert made(await docs.publish(PLAN, body, 0)).version == 1
    assert await text(docs) == body
    await docs.publish(PLAN, "x", 1)
    assert await text(docs, f"{PLAN}/v1") == body
    assert (await docs.versions(PLAN)).error is None


async def test_a_mebibyte_is_kept_and_one_byte_more_is_not(docs: Documents) -> None:
    whole = "é\n" * (BODY_BYTES_MAX // 3) + "x"
    assert len(whole.encode()) == BODY_BYTES_MAX
    made(await docs.publish(PLAN, whole, 0))
    assert await text(docs) == whole
    with pytest.raises(TooLarge):
        await docs.publish(PLAN, whole + "x", 1)
    with pytest.raises(TooLarge):
        await docs.append(PLAN, "y")
    assert (await docs.versions(PLAN)).current == 1
    made(await docs.publish(PLAN, "short", 1))


async def test_a_body_is_stored_once(rt: Runtime, docs: Documents) -> None:
    for number in range(4):
        await docs.publish(f"/copy/{number}", "the same\n", 0)
    await docs.publish("/copy/0", "another\n", 1)
    await docs.publish("/copy/0", "the same\n", 2)
    async with rt.store.reader() as reader:
        rows = await reader.fetch("SELECT count(*) FROM document_bodies")
    assert rows[0][0] == 2


async def test_appending(docs: Documents) -> None:
    await docs.publish(PLAN, "", 0)
    for added, whole in (("a", "a"), ("b\n", "a\nb\n"), ("c", "a\nb\nc"), ("\n", "a\nb\nc\n\n")):
        made(await docs.append(PLAN, added))
        assert await text(docs) == whole
    head = (await docs.versions(PLAN)).versions[0]
    assert await docs.append(PLAN, "") == Stands(head, made=False)
    assert await docs.append(PLAN, "lost", 4) == await docs.append(PLAN, "lost", 6) == Lost(head)
    assert made(await docs.append(PLAN, "won", 5)).version == 6


async def test_appends_at_the_same_time_are_all_kept(docs: Documents) -> None:
    await docs.publish(PLAN, "# Log", 0)

    async def append(line: str) -> None:
        made(await docs.append(PLAN, line))

    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(append, f"- {number}")
    lines = (await text(docs)).split("\n")
    assert lines[0] == "# Log" and sorted(lines[1:]) == sorted(f"- {number}" for number in range(50))
    assert (await docs.versions(PLAN)).current == 51


APPENDER = """
import sys, anyio
from cks_runtime.config import RuntimeConfig
from cks_runtime.runtime import Runtime

async def main(path, name):
    async with Runtime.open(RuntimeConfig(db_path=path, sqlite_synchronous="NORMAL")) as rt:
        for number in range(60):
            await rt.documents.append("/log.md", f"- {name} {number}", author=name)

anyio.run(main, *sys.argv[1:])
"""


async def test_two_processes_append_to_one_document(tmp_path: Path) -> None:
    db_path = str(tmp_path / "cks.db")
    async with runtime(db_path) as rt:
        await rt.documents.publish("/log.md", "# Log", 0)
        events = rt.bus.subscribe(DocumentPublished)
        async with anyio.create_task_group() as tasks:
            for name in ("a", "b"):
                tasks.start_soon(anyio.run_process, [sys.executable, "-c", APPENDER, db_path, name])
        lines = (await text(rt.documents, "/log.md")).split("\n")
        for name in ("a", "b"):
            own = [line for line in lines if line.startswith(f"- {name} ")]
            assert own == [f"- {name} {number}" for number in range(60)]
        chain = await rt.documents.versions("/log.md")
        assert (chain.current, chain.error, len(lines)) == (121, None, 121)
        with anyio.fail_after(5):
            heard = [await events.receive() for _ in range(120)]
        assert [event.version for event in heard if isinstance(event, DocumentPublished)] == [*range(2, 122)]


async def test_archiving_hides_and_brings_back(docs: Documents) -> None:
    await docs.publish(PLAN, "one\n", 0, "ann")
    marker = made(await docs.archive(PLAN, author="bob"))
    assert (marker.version, marker.archived, marker.author) == (2, True, "bob")
    assert await docs.archive(PLAN) == Stands(marker, made=False)
    assert await docs.fetch(PLAN) == await docs.fetch(f"{PLAN}/v2") == Archived(marker)
    assert await text(docs, f"{PLAN}/v1") == "one\n"
    assert await docs.append(PLAN, "x") == Archived(marker)
    for expected in (0, 1, 3):
        assert await docs.publish(PLAN, "one\n", expected) == Archived(marker)
    back = made(await docs.archive(PLAN, unarchive=True))
    assert (back.version, back.archived) == (3, False)
    assert await docs.archive(PLAN, unarchive=True) == Stands(back, made=False)
    assert await text(docs) == "one\n"
    assert (await docs.versions(PLAN)).error is None


@pytest.mark.parametrize("body", ["one\n", "two\n"])
async def test_a_publish_at_an_archived_head_brings_it_back(docs: Documents, body: str) -> None:
    await docs.publish(PLAN, "one\n", 0)
    await docs.archive(PLAN)
    assert made(await docs.publish(PLAN, body, 2)).version == 3
    assert await text(docs) == body


async def test_listing_by_prefix_a_page_at_a_time(docs: Documents) -> None:
    paths = ["/a", "/a/b", "/a/é", "/ab", "/b", "/z/\U0001f600", "/z/\uffff", "/%x", "/_"]
    for path in paths:
        await docs.publish(path, path, 0)
    await docs.archive("/ab")

    async def listed(prefix: str, limit: int) -> list[str]:
        found: list[str] = []
        while page := await docs.page(prefix, limit, found[-1] if found else ""):
            found += [head.path for head in page]
        return found

    for prefix in ("/", "", "/a", "/a/", "/z/", "/b", "/c", "a", "/%", "/_", "/../"):
        expected = sorted(path for path in paths if path.startswith(prefix))
        assert await listed(prefix, 2) == await listed(prefix, 500) == expected
    assert [head.archived for head in await docs.page("/ab")] == [True]
    assert await docs.page("/a", 10, "/z") == []


async def test_versions_a_page_at_a_time(docs: Documents) -> None:
    for number in range(7):
        await docs.publish(PLAN, str(number), number)
    below: int | None = None
    seen: list[int] = []
    while page := (await docs.versions(PLAN, 3, below)).versions:
        seen += [version.version for version in page]
        below = seen[-1]
    assert seen == [7, 6, 5, 4, 3, 2, 1]
    assert (await docs.versions(PLAN, 3, -5)).versions == ()


async def test_every_write_is_checked_before_the_store_is_asked(docs: Documents) -> None:
    for path in ("/a/../b", "a", "/a/v1", "/a%2fb", "/\ud800"):
        for call in (
            docs.publish(path, "x", 0),
            docs.append(path, "x"),
            docs.archive(path),
            docs.versions(path),
        ):
            with pytest.raises(InvalidParameter):
                await call
    with pytest.raises(InvalidParameter):
        await docs.publish(PLAN, "\ud800", 0)
    with pytest.raises(InvalidParameter):
        await docs.publish(PLAN, "x", -1)
    with pytest.raises(InvalidParameter):
        await docs.publish(PLAN, "x", 0, author="a\nb")
    assert await docs.page() == []


async def test_a_write_awaits_few_statements(rt: Runtime, docs: Documents) -> None:
    for write in (
        lambda: docs.publish(PLAN, "one", 0),
        lambda: docs.publish(PLAN, "two", 1),
        lambda: docs.append(PLAN, "three"),
        lambda: docs.archive(PLAN),
        lambda: docs.archive(PLAN, unarchive=True),
    ):
        made(await write())
        assert rt.store.last_statements <= STATEMENTS_MAX  # type: ignore[attr-defined]


async def test_a_cancelled_write_leaves_nothing_half_done(docs: Documents) -> None:
    await docs.publish(PLAN, "0", 0)
    expected = 1
    for steps in range(40):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def stop(steps: int = steps, scope: anyio.CancelScope = scope) -> None:
                    for _ in range(steps):
                        await anyio.lowlevel.checkpoint()
                    scope.cancel()

                tasks.start_soon(stop)
                await docs.publish(PLAN, f"try {steps}", expected)
                tasks.cancel_scope.cancel()
        chain = await docs.versions(PLAN, 1)
        assert chain.error is None and chain.current in (expected, expected + 1)
        body = f"try {steps}" if chain.current > expected else None
        expected = chain.current
        if body is not None:
            assert await text(docs) == body
        expected = made(await docs.publish(PLAN, f"after {steps}", expected)).version
