"""Reverting, closing, reopening, and reading versions and histories."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import FakeClock, OpenRuntime, location_of
from making import body as obj
from making import branch, evolve, ids_of, merged, patch, prove, remove, thing

from cks_runtime.flow import sessions
from cks_runtime.model.errors import InvalidParameter, SessionClosed, SessionNotFound, VersionNotFound
from cks_runtime.model.history import FIRST_VERSION
from cks_runtime.runtime import Runtime


@pytest.fixture
async def rt(body: str, open_rt: OpenRuntime, tmp_path: Any) -> AsyncIterator[Runtime]:
    async with open_rt(db_path=location_of(body, tmp_path)) as runtime:
        yield runtime


# ---- reverting


async def test_reverting_makes_a_new_version_and_keeps_the_history(rt: Runtime) -> None:
    first = await evolve(rt, "s", thing("a", x=1))
    second = await evolve(rt, "s", patch("a", x=2), thing("b"))
    moved = await rt.branches.revert("s", first.version.id.hex(), author="ann")
    assert moved.version.parents == (second.version.id,) and moved.version.root == first.version.root
    assert moved.version.author == "ann" and first.version.id.hex() in moved.version.message
    assert (await rt.branches.revert("s", first.version.id.hex())).no_op
    assert (await rt.branches.revert("s", second.version.id.hex()[:16])).after == second.after
    page = await rt.sessions.history([(await rt.sessions.get("s")).head], 10)
    assert len(page.versions) == 5 and page.versions[-1] == FIRST_VERSION
    with pytest.raises(VersionNotFound):
        await rt.branches.revert("s", "0" * 64)


async def test_reverting_brings_back_records_of_an_older_subject(rt: Runtime, clock: FakeClock) -> None:
    await evolve(rt, "s", thing("a", x=1))
    proven = await prove(rt, "s", "a", "proof", clock())
    await evolve(rt, "s", patch("a", x=2))
    changed = await evolve(rt, "s", patch("a", x=3))
    await evolve(rt, "s", remove("proof"))
    for version in (proven, changed):
        await rt.branches.revert("s", version.version.id.hex())
        assert "proof" in await ids_of(rt, "s")


# ---- closing


async def test_closing_and_reopening_are_versions(rt: Runtime) -> None:
    made = await evolve(rt, "s", thing("a"))
    closed = await rt.branches.close("s", author="ann")
    assert closed.version.closed and closed.version.parents == (made.version.id,)
    assert (await rt.sessions.get("s")).closed
    assert (await rt.branches.close("s")).no_op
    assert [row.session_id for row in await rt.sessions.page(True, "", 9)] == ["s"]
    reopened = await rt.branches.close("s", reopen=True)
    assert not reopened.version.closed and (await rt.branches.close("s", reopen=True)).no_op
    assert await rt.sessions.page(True, "", 9) == []
    with pytest.raises(SessionNotFound):
        await rt.branches.close("nobody")


async def test_a_closed_target_takes_no_merge_and_no_revert(rt: Runtime) -> None:
    first = await evolve(rt, "s", thing("a"))
    other = await branch(rt)
    await evolve(rt, other, thing("b"))
    await rt.branches.close("s")
    with pytest.raises(SessionClosed):
        await rt.branches.merge("s", other)
    with pytest.raises(SessionClosed):
        await rt.branches.merge("s", other, dry_run=True)
    with pytest.raises(SessionClosed):
        await rt.branches.revert("s", first.version.id.hex())


async def test_a_closed_source_merges_and_leaves_the_target_open(rt: Runtime) -> None:
    """A target is never moved to a version whose `closed` differs from its own."""
    await evolve(rt, "s", thing("a"))
    other = await branch(rt)
    await evolve(rt, other, thing("b"))
    closed = await rt.branches.close(other)
    done = await merged(rt, "s", other)
    row = await rt.sessions.get("s")
    assert not row.closed and row.head == done.version_id != closed.version.id
    version = await rt.graphs.version(row.head)
    assert closed.version.id in version.parents and not version.closed
    assert await ids_of(rt, "s") == ["a", "b"] and (await merged(rt, "s", other)).no_op


async def test_reverting_keeps_the_sessions_own_state(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a"))
    closed = await rt.branches.close("s")
    await rt.branches.close("s", reopen=True)
    await evolve(rt, "s", thing("b"))
    moved = await rt.branches.revert("s", closed.version.id.hex())
    assert not moved.version.closed and await ids_of(rt, "s") == ["a"]


# ---- versions and histories


async def test_a_version_is_found_by_a_unique_prefix(rt: Runtime) -> None:
    made = await evolve(rt, "s", thing("a"))
    text = made.version.id.hex()
    assert await rt.sessions.version(text[:8].upper()) == made.version
    assert await rt.sessions.version(FIRST_VERSION.id.hex()[:9]) == FIRST_VERSION
    for bad in (text[:7], "", text + "0", "not-hex-at-all"):
        with pytest.raises(InvalidParameter):
            await rt.sessions.version(bad)
    with pytest.raises(VersionNotFound):
        await rt.sessions.version("00000000")


async def test_a_history_comes_in_pages_every_version_before_its_parents(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a"))
    for number in range(6):
        other = await branch(rt)
        await evolve(rt, other, thing(f"o{number}"))
        await evolve(rt, "s", thing(f"s{number}"))
        await merged(rt, "s", other)
    frontier = [(await rt.sessions.get("s")).head]
    seen: list[bytes] = []
    while frontier:
        page = await rt.sessions.history(frontier, 4)
        for version in page.versions:
            assert not set(version.parents) & set(seen)
            seen.append(version.id)
        frontier = list(page.frontier)
    assert len(seen) == len(set(seen)) == 1 + 1 + 3 * 6


async def test_who_changed_an_object_last_is_found_through_the_history(
    rt: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    await evolve(rt, "s", thing("a"), thing("b"))
    other = await branch(rt)
    theirs = await evolve(rt, other, patch("a", x=1))
    await evolve(rt, "s", patch("b", x=1))
    done = await merged(rt, "s", other)
    for number in range(5):
        await evolve(rt, "s", patch("b", x=number + 2))
    row = await rt.sessions.get("s")
    assert await rt.sessions.last_change(row, "a") == theirs.version
    last = await rt.sessions.last_change(row, "b")
    assert last is not None and last.id == row.head != done.version_id
    monkeypatch.setattr(sessions, "LOOK_BACK", 3)
    assert await rt.sessions.last_change(row, "a") is None, "further back than it looks"


async def test_sizes_are_read_off_the_roots(rt: Runtime) -> None:
    made = await rt.commits.put("s", [obj(f"o{n}") for n in range(100)], create=True)
    empty = FIRST_VERSION.root
    assert await rt.sessions.sizes([made.after.root, empty]) == {made.after.root: 100, empty: 0}
    assert await rt.sessions.sizes([]) == {}
