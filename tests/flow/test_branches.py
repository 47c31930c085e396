"""Branching, merging, reverting and closing: what moves, what stays, and what `closed` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import FakeClock, OpenRuntime, location_of
from making import body as obj
from making import (
    branch,
    evolve,
    ids_of,
    merged,
    patch,
    prove,
    refused,
    relation,
    remove,
    step,
    thing,
    things,
)

from cks_runtime.flow import branches
from cks_runtime.model.errors import (
    HeadMoved,
    InvalidKnowledge,
    InvalidParameter,
    SessionNotFound,
    VersionNotFound,
)
from cks_runtime.model.events import SessionCreated
from cks_runtime.model.history import FIRST_VERSION
from cks_runtime.runtime import Runtime


@pytest.fixture
async def rt(body: str, open_rt: OpenRuntime, tmp_path: Any) -> AsyncIterator[Runtime]:
    async with open_rt(db_path=location_of(body, tmp_path)) as runtime:
        yield runtime


async def head(rt: Runtime, session_id: str) -> str:
    return (await rt.sessions.get(session_id)).head.hex()


async def count(rt: Runtime, table: str) -> int:
    async with rt.store.reader() as reader:
        return int((await reader.fetch(f"SELECT count(*) FROM {table}"))[0][0])


# ---- branches


async def test_a_branch_starts_at_the_head_and_copies_nothing(rt: Runtime) -> None:
    made = await evolve(rt, "s", *things("a", "b"))
    blobs, versions = await count(rt, "blobs"), await count(rt, "versions")
    row = await rt.branches.create("s", title="Größe & more")
    assert (await count(rt, "blobs"), await count(rt, "versions")) == (blobs, versions)
    assert row == await rt.sessions.get(row.session_id)
    assert row.session_id.startswith("s-gr-e-more-") and row.title == "Größe & more"
    assert (row.head, row.fork_version, row.fork_session) == (made.version.id, made.version.id, "s")
    assert row.generation == 1
    await evolve(rt, row.session_id, remove("a"))
    assert await ids_of(rt, "s") == ["a", "b"]


async def test_a_branch_can_start_at_an_earlier_version(rt: Runtime) -> None:
    first = await evolve(rt, "s", thing("a"))
    await evolve(rt, "s", thing("b"))
    other = await evolve(rt, "other", thing("c"))
    row = await rt.branches.create("s", first.version.id.hex()[:10])
    assert await ids_of(rt, row.session_id) == ["a"]
    empty = await rt.branches.create("s", FIRST_VERSION.id.hex())
    assert await ids_of(rt, empty.session_id) == []
    with pytest.raises(InvalidParameter, match="not in the history"):
        await rt.branches.create("s", other.version.id.hex())
    with pytest.raises(VersionNotFound):
        await rt.branches.create("s", "0" * 64)
    with pytest.raises(SessionNotFound):
        await rt.branches.create("nobody")


async def test_a_branch_of_a_closed_session_is_open(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a"))
    closed = await rt.branches.close("s")
    row = await rt.branches.create("s")
    assert not row.closed and row.fork_version == closed.version.id and row.head != row.fork_version
    assert row.generation == 3
    await evolve(rt, row.session_id, thing("b"))


async def test_a_taken_name_tells_no_second_session(rt: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["s-same", "s-same", "s-other"])
    monkeypatch.setattr(branches, "branch_name", lambda session_id, title: next(names))
    await evolve(rt, "s", thing("a"))
    assert [await branch(rt), await branch(rt)] == ["s-same", "s-other"]
    told = [event.session_id async for event in rt.journal.replay(types=[SessionCreated])]
    assert told == ["s", "s-same", "s-other"]


# ---- merges


async def test_different_fields_merge_by_themselves(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a", x=1, y=1), thing("b"))
    other = await branch(rt)
    ours = await evolve(rt, "s", patch("a", x=2))
    theirs = await evolve(rt, other, patch("a", y=2), thing("c"))
    done = await merged(rt, "s", other, author="ann", message="both")
    assert not done.no_op and done.after["a"].structure == {"x": 2, "y": 2} and "c" in done.after
    version = await rt.graphs.version(done.version_id)
    assert set(version.parents) == {ours.version.id, theirs.version.id}
    assert (version.author, version.message) == ("ann", "both")
    row, graph = await rt.sessions.head("s")
    assert row.head == done.version_id and graph == done.after
    assert await rt.sessions.parent_of("s", version) == ours.version
    assert await ids_of(rt, other) == ["a", "b", "c"], "the source stays where it is"


async def test_a_repeated_merge_is_a_no_op_with_or_without_resolutions(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a", x=1))
    other = await branch(rt)
    await evolve(rt, "s", patch("a", x=2))
    await evolve(rt, other, patch("a", x=3))
    first = await merged(rt, "s", other, resolutions={"a": "branch_b"})
    for resolutions in ({}, {"a": "branch_b"}):
        again = await merged(rt, "s", other, resolutions=resolutions)
        assert again.no_op and again.version_id == first.version_id
    await evolve(rt, "s", remove("a"))
    assert (await merged(rt, "s", other)).no_op, "what was merged does not come back"
    assert await ids_of(rt, "s") == []


async def test_a_target_that_has_not_moved_is_fast_forwarded(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a"))
    other = await branch(rt)
    theirs = await evolve(rt, other, thing("b"))
    with pytest.raises(InvalidParameter, match="nothing is in conflict"):
        await rt.branches.merge("s", other, resolutions={"a": "branch_a"})
    versions = await count(rt, "versions")
    done = await merged(rt, "s", other)
    assert done.version_id == theirs.version.id and await count(rt, "versions") == versions
    row = await rt.sessions.get("s")
    assert row.head == theirs.version.id and row.generation == 2
    assert (await merged(rt, other, "s")).no_op


async def test_a_conflict_never_touches_the_target(rt: Runtime) -> None:
    base = await evolve(rt, "s", thing("a", x=1), thing("b"))
    other = await branch(rt)
    ours = await evolve(rt, "s", patch("a", x=2))
    await evolve(rt, other, patch("a", x=3), patch("b", y=1))
    found = await refused(rt, "s", other)
    (conflict,) = found.conflicts
    assert (conflict.object_id, conflict.kind, conflict.fields) == ("a", "edit/edit", ("x",))
    assert found.base_version_ids == (base.version.id,)
    assert await head(rt, "s") == ours.version.id.hex()
    done = await merged(rt, "s", other, resolutions={"a": "branch_b"}, base_version_id=base.version.id.hex())
    assert done.after["a"].structure == {"x": 3} and done.after["b"].structure == {"y": 1}
    message = (await rt.graphs.version(done.version_id)).message
    assert message == f"Merge {other} into s (resolved a: branch_b)"


async def test_resolutions_answer_conflicts_and_only_those(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a", x=1), thing("b", x=1), thing("c"))
    other = await branch(rt)
    await evolve(rt, "s", patch("a", x=2), patch("b", x=2))
    await evolve(rt, other, patch("a", x=3), patch("b", x=3))
    left = await refused(rt, "s", other, resolutions={"a": obj("a", x=9)})
    assert [conflict.object_id for conflict in left.conflicts] == ["b"]
    with pytest.raises(InvalidParameter, match="'c'"):
        await rt.branches.merge("s", other, resolutions={"c": "branch_a"})
    with pytest.raises(InvalidParameter, match="'a'"):
        await rt.branches.merge("s", other, resolutions={"a": obj("b")})
    done = await merged(rt, "s", other, resolutions={"a": obj("a", x=9), "b": None})
    assert done.after["a"].structure == {"x": 9} and "b" not in done.after


async def test_a_dry_run_tells_and_changes_nothing(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a", x=1))
    other = await branch(rt)
    await evolve(rt, other, patch("a", x=2))
    before = [await count(rt, table) for table in ("versions", "blobs", "journal")]
    forward = await merged(rt, "s", other, dry_run=True)
    assert forward.version_id is None and forward.after["a"].structure == {"x": 2}
    await evolve(rt, "s", thing("b"))
    whole = await merged(rt, "s", other, dry_run=True)
    assert sorted(whole.after.ids()) == ["a", "b"] and not whole.no_op
    await evolve(rt, "s", patch("a", x=3))
    assert len((await refused(rt, "s", other, dry_run=True)).conflicts) == 1
    after = [await count(rt, table) for table in ("versions", "journal")]
    assert after == [before[0] + 2, before[2] + 2], "two edits, and nothing of the dry runs"


async def test_a_base_that_is_not_the_computed_one_is_refused(rt: Runtime) -> None:
    base = await evolve(rt, "s", thing("a", x=1))
    other = await branch(rt)
    ours = await evolve(rt, "s", patch("a", x=2))
    await evolve(rt, other, thing("b"))
    with pytest.raises(HeadMoved) as caught:
        await rt.branches.merge("s", other, base_version_id=ours.version.id.hex())
    assert caught.value.details["base_version_id"] == base.version.id.hex()
    await merged(rt, "s", other, base_version_id=base.version.id.hex()[:12])


async def test_merging_a_session_into_itself_is_refused(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a"))
    with pytest.raises(InvalidParameter, match="'s'"):
        await rt.branches.merge("s", "s")
    for pair in (("s", "nobody"), ("nobody", "s")):
        with pytest.raises(SessionNotFound, match="nobody"):
            await rt.branches.merge(*pair)


async def test_unrelated_sessions_meet_at_the_first_version(rt: Runtime) -> None:
    await evolve(rt, "one", thing("a", x=1), thing("b"))
    await evolve(rt, "two", thing("a", x=2), thing("c"))
    found = await refused(rt, "one", "two")
    assert [(c.object_id, c.kind) for c in found.conflicts] == [("a", "add/add")]
    assert found.base_version_ids == (FIRST_VERSION.id,)
    done = await merged(rt, "one", "two", resolutions={"a": "branch_a"})
    assert sorted(done.after.ids()) == ["a", "b", "c"]


async def test_criss_cross_merges_have_two_bases(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a", x=0, y=0), thing("b"))
    other = await branch(rt)
    ours = await evolve(rt, "s", patch("a", x=1))
    theirs = await evolve(rt, other, patch("a", y=1))
    at_ours = (await rt.branches.create("s", ours.version.id.hex())).session_id
    at_theirs = (await rt.branches.create(other, theirs.version.id.hex())).session_id
    await merged(rt, "s", at_theirs)
    await merged(rt, other, at_ours)
    await evolve(rt, "s", patch("b", s=1))
    await evolve(rt, other, patch("b", o=1))
    dry = await merged(rt, "s", other, dry_run=True)
    assert set(dry.base_version_ids) == {ours.version.id, theirs.version.id}
    assert dry.base_version_ids == tuple(sorted(dry.base_version_ids))
    assert dry.after["a"].structure == {"x": 1, "y": 1} and dry.after["b"].structure == {"s": 1, "o": 1}
    one = await merged(rt, "s", other, base_version_id=min(dry.base_version_ids).hex())
    assert one.after == dry.after
    assert (await merged(rt, other, "s")).after == dry.after


async def test_where_two_bases_disagree_the_field_conflicts(rt: Runtime) -> None:
    await evolve(rt, "s", thing("a", x=0))
    other = await branch(rt)
    ours = await evolve(rt, "s", patch("a", x=1))
    theirs = await evolve(rt, other, patch("a", x=2))
    at_ours = (await rt.branches.create("s", ours.version.id.hex())).session_id
    at_theirs = (await rt.branches.create(other, theirs.version.id.hex())).session_id
    await merged(rt, "s", at_theirs, resolutions={"a": "branch_a"})
    await merged(rt, other, at_ours, resolutions={"a": "branch_a"})
    found = await refused(rt, "s", other)
    assert [(c.object_id, c.kind) for c in found.conflicts] == [("a", "edit/edit")]


async def test_a_new_relation_to_a_removed_object_is_a_conflict(rt: Runtime) -> None:
    await evolve(rt, "s", *things("a", "b"))
    other = await branch(rt)
    await evolve(rt, "s", remove("b"))
    await evolve(rt, other, relation("r", "a", "b"))
    found = await refused(rt, "s", other)
    assert [(c.object_id, c.kind) for c in found.conflicts] == [("r", "dangling")]
    done = await merged(rt, "s", other, resolutions={"r": "branch_b"})
    assert done.restored == ("b",) and sorted(done.after.ids()) == ["a", "b", "r"]


async def test_two_clean_answers_that_are_invalid_together_are_a_conflict(rt: Runtime) -> None:
    await evolve(rt, "s", thing("c"), step("i", "c"), step("j", "c"))
    other = await branch(rt)
    await evolve(rt, "s", patch("i", superseded_by="j"))
    await evolve(rt, other, patch("j", superseded_by="i"))
    found = await refused(rt, "s", other)
    assert {c.kind for c in found.conflicts} == {"invalid_together"}
    assert {c.object_id for c in found.conflicts} <= {"i", "j"}


async def test_verification_records_pass_a_merge_but_cannot_be_made_by_one(
    rt: Runtime, clock: FakeClock
) -> None:
    await evolve(rt, "s", thing("a", x=1))
    other = await branch(rt)
    await prove(rt, other, "a", "proof", clock())
    await evolve(rt, "s", patch("a", x=2))
    done = await merged(rt, "s", other)
    assert "proof" in done.after, "signed history, though its subject has changed since"
    with pytest.raises(InvalidKnowledge) as caught:
        await evolve(rt, "s", patch("proof", url="https://example.org/forged"))
    assert "CKS-MCP-UNVERIFIED-PROVENANCE" in str(caught.value.details["diagnostics"])


async def test_a_revert_goes_back_in_its_own_line_only(rt: Runtime) -> None:
    await evolve(rt, "s", *things("a"))
    await evolve(rt, "other", *things("b"))
    with pytest.raises(InvalidParameter, match="not in the history of session 's'"):
        await rt.branches.revert("s", await head(rt, "other"))
    assert await ids_of(rt, "s") == ["a"]
