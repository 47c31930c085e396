"""Full text over a session's head: any script, ranked, in pages, and only what the head holds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from conftest import OpenRuntime, location_of
from making import branch, evolve, patch, remove, thing

from cks_runtime.flow import search as searching
from cks_runtime.flow.search import Hits
from cks_runtime.model.errors import InvalidParameter, SessionNotFound
from cks_runtime.runtime import Runtime
from cks_runtime.store import search as rows


@pytest.fixture
async def rt(body: str, open_rt: OpenRuntime, tmp_path: Any) -> AsyncIterator[Runtime]:
    async with open_rt(db_path=location_of(body, tmp_path)) as runtime:
        yield runtime


def ids(hits: Hits) -> list[str]:
    return [hit.obj.id for hit in hits.hits]


async def found(rt: Runtime, query: str, session_id: str = "s") -> list[str]:
    return sorted(ids(await rt.search.find(session_id, query, 50)))


SCRIPTS = {
    "german": "Die Größe des Mondes",
    "french": "Voilà, l'été",
    "russian": "Спутник Земли",
    "greek": "Ἀθῆναι",
    "arabic": "القمر قريب",
    "hindi": "चन्द्रमा पृथ्वी",
    "japanese": "月は地球の衛星です",
    "chinese": "月球是地球的卫星",
    "thai": "ดวงจันทร์เป็นบริวาร",
    "korean": "달은 지구의 위성",
}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("grosse", ["german"]),
        ("GRÖSSE mond", ["german"]),
        ("ete", ["french"]),
        ("спутник", ["russian"]),
        ("αθηναι", ["greek"]),
        ("القمر", ["arabic"]),
        ("चन्द्रमा", ["hindi"]),
        ("地球", ["chinese", "japanese"]),
        ("衛星", ["japanese"]),
        ("卫星", ["chinese"]),
        ("จันทร์", ["thai"]),
        ("지구의", ["korean"]),
    ],
)
async def test_every_script_is_found(open_rt: OpenRuntime, query: str, expected: list[str]) -> None:
    async with open_rt(db_path=":memory:") as rt:
        await evolve(rt, "s", *(thing(id, text=text) for id, text in SCRIPTS.items()))
        assert await found(rt, query) == expected


async def test_words_names_ids_types_and_numbers_are_found(rt: Runtime) -> None:
    await evolve(rt, "s", thing("pluto-9", radius_km=1188.3, seen={"by": ["Tombaugh", None, True]}))
    for query in ("pluto", "PLUTO-9", "thing", "1188.3", "tombaugh", "tomb", "thing tombaugh"):
        assert await found(rt, query) == ["pluto-9"], query
    for query in ("baugh", "none", "true", "by"):
        assert await found(rt, query) == [], query
    for query in ("", "  ", "!?", "\ud800"):
        with pytest.raises(InvalidParameter):
            await rt.search.find("s", query, 5)
    with pytest.raises(SessionNotFound):
        await rt.search.find("nobody", "x", 5)


@pytest.mark.parametrize("query", ['"', "a OR", "NEAR(", "col:x", "*", "a AND NOT b", "(a", "x^2", "-a"])
async def test_a_query_is_words_and_never_a_language(rt: Runtime, query: str) -> None:
    await evolve(rt, "s", thing("a"))
    try:
        await rt.search.find("s", query, 5)
    except InvalidParameter as error:
        assert "no word" in error.message


async def test_only_what_the_head_holds_is_found(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a", text="old words"), thing("b", text="words"))
    other = await branch(rt)
    assert await found(rt, "words") == ["a", "b"]
    await evolve(rt, "s", patch("a", text="new"), remove("b"))
    assert await found(rt, "words") == [] and await found(rt, "new") == ["a"]
    assert await found(rt, "words", other) == ["a", "b"]
    await rt.branches.revert("s", (await rt.sessions.get(other)).head.hex())
    assert await found(rt, "words") == ["a", "b"]


async def test_objects_with_every_word_come_alone_else_those_with_any(rt: Runtime) -> None:
    await evolve(rt, "s", thing("both", text="red moon"), thing("one", text="red sun"))
    all_words = await rt.search.find("s", "red moon", 5)
    assert ids(all_words) == ["both"] and all_words.every
    any_word = await rt.search.find("s", "red comet", 5)
    assert sorted(ids(any_word)) == ["both", "one"] and not any_word.every


async def test_hits_come_best_first_with_snippets_and_in_pages(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "PAGE", 4)
    texts = {f"o{n:02}": "moon " + "filler " * (n + 1) for n in range(11)}
    await evolve(rt, "s", *(thing(id, text=text) for id, text in texts.items()))
    seen: list[str] = []
    skip: int | None = 0
    while skip is not None:
        page = await rt.search.find("s", "moon", 3, skip)
        seen += ids(page)
        assert [hit.score for hit in page.hits] == sorted((hit.score for hit in page.hits), reverse=True)
        assert all("**moon**" in hit.snippet for hit in page.hits)
        skip = page.next_skip
    assert seen == sorted(texts), "the shorter the text, the better the hit"


async def test_a_scan_is_bounded_and_goes_on_where_it_stopped(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "PAGE", 2)
    monkeypatch.setattr(searching, "SCANNED_MAX", 4)
    for number in range(9):
        await evolve(rt, "s", thing(f"x{number}", text="moon"))
        await evolve(rt, "s", remove(f"x{number}"))
    await evolve(rt, "s", thing("kept", text="moon and very much more of other words"))
    first = await rt.search.find("s", "moon", 5)
    assert first.hits == () and first.next_skip == 4
    skip: int | None = first.next_skip
    seen: list[str] = []
    while skip is not None:
        page = await rt.search.find("s", "moon", 5, skip)
        seen, skip = seen + ids(page), page.next_skip
    assert seen == ["kept"]


async def test_each_object_is_indexed_once_by_whoever_searches_first(
    open_rt: OpenRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "INDEX_BATCH", 3)
    async with open_rt() as one, open_rt() as two:
        await evolve(one, "s", *(thing(f"o{n}", text="moon") for n in range(20)))
        async with anyio.create_task_group() as tasks:
            for rt in (one, two) * 3:
                tasks.start_soon(rt.search.find, "s", "moon", 5)
        assert len(await found(two, "moon")) == 20
        async with one.store.reader() as reader:
            ((indexed,),) = await reader.fetch("SELECT count(*) FROM search WHERE search MATCH 'moon'")
        assert indexed == 20
