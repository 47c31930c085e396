"""Version ids, merge bases against a brute-force oracle, and what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.model.canon import Hash, canonical, digest
from cks_runtime.model.errors import DamagedBlob, VersionNotFound
from cks_runtime.model.history import (
    FIRST_VERSION,
    Ancestry,
    Version,
    generation_after,
    is_ancestor,
    merge_bases,
    merge_closed,
    merge_version,
    run_sync,
    version_from_blob,
)
from cks_runtime.model.trie import EMPTY_ROOT

ROOT = digest(b"content")


def name(number: int) -> Hash:
    return sha256(str(number).encode()).digest()


class History:
    """A DAG of numbered versions that counts what is read of it."""

    def __init__(self) -> None:
        self.ancestry: dict[Hash, Ancestry] = {}
        self.read: list[Hash] = []

    def add(self, number: int, *parents: int) -> Hash:
        ids = tuple(sorted({name(p) for p in parents}))
        self.ancestry[name(number)] = Ancestry(ids, generation_after(self.ancestry[p] for p in ids))
        return name(number)

    def fetch(self, ids: list[Hash]) -> Mapping[Hash, Ancestry]:
        assert len(ids) == len(set(ids))
        self.read += ids
        return {id: self.ancestry[id] for id in ids}

    def bases(self, a: int, b: int) -> tuple[Hash, ...]:
        return run_sync(merge_bases(name(a), name(b)), self.fetch)

    def above(self, old: int, new: int) -> bool:
        return run_sync(is_ancestor(name(old), name(new)), self.fetch)

    def ancestors(self, id: Hash) -> set[Hash]:
        """Brute force: a version and all before it."""
        seen, pending = {id}, [id]
        while pending:
            for parent in self.ancestry[pending.pop()].parents:
                if parent not in seen:
                    seen.add(parent)
                    pending.append(parent)
        return seen


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    history.add(0)
    for number in range(1, draw(st.integers(1, 24))):
        history.add(number, *draw(st.lists(st.integers(0, number - 1), max_size=3)))
    return history


@given(histories(), st.data())
def test_merge_bases_are_all_the_lowest_common_ancestors(history: History, data: st.DataObject) -> None:
    number = st.integers(0, len(history.ancestry) - 1)
    a, b = data.draw(number), data.draw(number)
    common = history.ancestors(name(a)) & history.ancestors(name(b))
    lowest = {c for c in common if not any(c in history.ancestors(d) for d in common - {c})}
    assert history.bases(a, b) == tuple(sorted(lowest))
    assert history.bases(b, a) == tuple(sorted(lowest))
    assert history.above(a, b) == (name(a) in history.ancestors(name(b)))


@given(histories(), st.data())
def test_an_answer_may_hold_more_than_was_asked(history: History, data: st.DataObject) -> None:
    number = st.integers(0, len(history.ancestry) - 1)
    a, b = data.draw(number), data.draw(number)
    asked: list[Hash] = []

    def generous(ids: list[Hash]) -> Mapping[Hash, Ancestry]:
        asked.extend(ids)
        return history.ancestry

    assert run_sync(merge_bases(name(a), name(b)), generous) == history.bases(a, b)
    assert set(asked) <= {name(a), name(b)}


def test_criss_cross_has_both_bases() -> None:
    history = History()
    history.add(0)
    history.add(1, 0)
    history.add(2, 0)
    history.add(3, 1, 2)
    history.add(4, 2, 1)
    assert history.bases(3, 4) == tuple(sorted([name(1), name(2)]))


def line(length: int) -> History:
    history = History()
    history.add(0)
    for number in range(1, length):
        history.add(number, number - 1)
    return history


def test_the_cost_follows_the_divergence() -> None:
    history = line(10_000)
    for number, parent in [(20_001, 9_999), (20_002, 20_001), (20_003, 20_002)]:
        history.add(number, parent)
    for number, parent in [(30_001, 9_999), (30_002, 30_001), (30_003, 30_002)]:
        history.add(number, parent)
    assert history.bases(20_003, 30_003) == (name(9_999),)
    assert len(history.read) < 20


def test_an_old_line_merged_long_ago_does_not_make_the_whole_history_be_read() -> None:
    history = line(10_000)
    history.add(20_000, 5)
    history.add(20_001, 9_999, 20_000)
    history.add(20_002, 9_999)
    assert history.bases(20_001, 20_002) == (name(9_999),)
    assert len(history.read) < 20


def test_a_fast_forward_reads_only_what_is_between() -> None:
    history = line(10_000)
    assert history.bases(9_990, 9_999) == (name(9_990),)
    assert history.above(9_990, 9_999)
    assert not history.above(9_999, 9_990)
    assert len(history.read) < 40


def test_a_version_is_its_own_ancestor_and_base_without_reading() -> None:
    history = line(2)
    assert history.bases(1, 1) == (name(1),)
    assert history.above(1, 1)
    assert history.read == []


def test_histories_with_nothing_in_common_have_no_base() -> None:
    history = line(3)
    history.add(10)
    history.add(11, 10)
    assert history.bases(2, 11) == ()
    assert not history.above(0, 11)


def test_a_version_that_is_not_here_is_named() -> None:
    with pytest.raises(VersionNotFound, match=name(7).hex()):
        run_sync(merge_bases(name(7), name(8)), lambda ids: {})
    with pytest.raises(VersionNotFound):
        run_sync(is_ancestor(name(7), name(8)), lambda ids: {})


def test_the_id_is_the_hash_of_exactly_the_fields() -> None:
    version = Version((name(2), name(1)), ROOT, False, "ann", "why", 1_700_000_000_000)
    spelled: dict[str, Any] = {
        "author": "ann",
        "closed": False,
        "created_at": 1_700_000_000_000,
        "message": "why",
        "parents": sorted([name(1).hex(), name(2).hex()]),
        "root": ROOT.hex(),
    }
    assert version.blob() == canonical(spelled)
    assert version.id == digest(version.blob())
    assert version.parents == tuple(sorted([name(1), name(2)]))
    assert Version((name(1), name(2)), ROOT, False, "ann", "why", 1_700_000_000_000) == version


def test_the_first_version_is_fixed() -> None:
    assert FIRST_VERSION.parents == ()
    assert FIRST_VERSION.root == EMPTY_ROOT
    assert FIRST_VERSION.id.hex() == "26a74fae8b3f7708ea8c7a297751bba954375ccc7e2eb286d77105c4271b8dcf"


@given(
    st.lists(st.binary(min_size=32, max_size=32), max_size=3),
    st.booleans(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.integers(-(2**40), 2**50),
)
def test_versions_read_back(parents: list[Hash], closed: bool, text: str, created_at_ms: int) -> None:
    version = Version(tuple(parents), ROOT, closed, text, text, created_at_ms)
    assert version_from_blob(version.blob(), version.id) == version


GOOD = Version((name(1), name(2)), ROOT, True, "ann", "why", 5).blob()


@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"[]",
        b"\xff",
        GOOD.replace(b"true", b"1"),
        GOOD.replace(b":5", b":true"),
        GOOD.replace(b":5", b":5.5"),
        GOOD.replace(b":5", b": 5"),
        GOOD.replace(b'"ann"', b"null"),
        GOOD.replace(b'"author"', b'"autor"'),
        GOOD.replace(b"{", b'{"extra":1,'),
        GOOD.replace(ROOT.hex().encode(), b"00"),
        GOOD.replace(ROOT.hex().encode(), ROOT.hex().upper().encode()),
        GOOD.replace(ROOT.hex().encode(), b"z" * 64),
        GOOD.replace(max(name(1), name(2)).hex().encode(), min(name(1), name(2)).hex().encode()),
    ],
)
def test_a_blob_that_is_no_canonical_version_is_refused(blob: bytes) -> None:
    with pytest.raises(DamagedBlob, match=digest(blob).hex()):
        version_from_blob(blob, digest(blob))


def test_a_blob_under_another_hash_is_refused() -> None:
    with pytest.raises(DamagedBlob):
        version_from_blob(GOOD, digest(b"other"))


def test_an_automatic_merge_is_the_same_version_on_every_replica() -> None:
    older = Version((FIRST_VERSION.id,), ROOT, False, "ann", "a", 100)
    newer = Version((FIRST_VERSION.id,), ROOT, False, "bob", "b", 200)
    merged = merge_version([older, newer], ROOT, closed=True)
    assert merged == merge_version([newer, older], ROOT, closed=True)
    assert (merged.author, merged.message, merged.created_at_ms) == ("auto-merge", "", 200)
    assert merged.parents == tuple(sorted([older.id, newer.id]))
    assert merged.closed


@pytest.mark.parametrize(
    ("bases", "ours", "theirs", "merged"),
    [
        ([False], False, False, False),
        ([False], True, False, True),
        ([False], True, True, True),
        ([True], True, False, False),
        ([True], False, False, False),
        ([False, True], True, False, True),
        ([False, True], False, False, False),
        ([False, False], True, False, True),
        ([], True, False, True),
    ],
)
def test_closed_merges_like_a_field(bases: list[bool], ours: bool, theirs: bool, merged: bool) -> None:
    assert merge_closed(bases, ours, theirs) == merged
    assert merge_closed(bases, theirs, ours) == merged
