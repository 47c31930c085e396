"""The map of heads: joining is a lattice, so neither order nor repetition of exchanges matters."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.model.canon import Hash, canonical, digest
from cks_runtime.model.errors import DamagedBlob
from cks_runtime.model.gossip_heads import (
    Origin,
    SessionHeads,
    join_heads,
    maximal,
    session_heads_from_blob,
)
from cks_runtime.model.history import FIRST_VERSION, Ancestry, generation_after, run_sync

REPLICAS = [letter * 16 for letter in "abc"]


@st.composite
def histories(draw: st.DrawFn) -> dict[Hash, Ancestry]:
    """Versions of a random history, each with up to three earlier ones as parents."""
    known: dict[Hash, Ancestry] = {}
    for number in range(draw(st.integers(1, 12))):
        ids = list(known)
        parents = tuple(sorted(set(draw(st.lists(st.sampled_from(ids), max_size=3))))) if ids else ()
        id = digest(b"%d" % number)
        known[id] = Ancestry(parents, generation_after(known[p] for p in parents))
    return known


def joined(known: Mapping[Hash, Ancestry], *maps: Mapping[Hash, str]) -> Mapping[Hash, str]:
    return run_sync(join_heads(*maps), lambda ids: {id: known[id] for id in ids})


@given(histories(), st.data())
def test_joining_is_commutative_associative_and_idempotent(
    known: dict[Hash, Ancestry], data: st.DataObject
) -> None:
    ids = list(known)
    maps = [
        joined(known, data.draw(st.dictionaries(st.sampled_from(ids), st.sampled_from(REPLICAS))))
        for _ in range(3)
    ]
    a, b, c = maps
    assert joined(known, a, b) == joined(known, b, a)
    assert joined(known, joined(known, a, b), c) == joined(known, a, joined(known, b, c))
    assert joined(known, a, a) == a
    assert joined(known, joined(known, a, b), a) == joined(known, a, b)


@given(histories())
def test_the_maximal_heads_are_those_that_nothing_descends_from(known: dict[Hash, Ancestry]) -> None:
    parents = {parent for ancestry in known.values() for parent in ancestry.parents}
    found = run_sync(maximal(known), lambda ids: {id: known[id] for id in ids})
    assert set(found) == known.keys() - parents


def test_an_entry_is_read_as_it_was_written() -> None:
    entry = SessionHeads("s", Origin("títle", "t", FIRST_VERSION.id), {digest(b"x"): "a" * 16})
    assert session_heads_from_blob(entry.blob(), entry.hash) == entry


@pytest.mark.parametrize(
    "change",
    [
        {"session": "s@b"},
        {"session": ""},
        {"heads": {}},
        {"heads": {"zz": "a" * 16}},
        {"heads": {digest(b"x").hex(): "A" * 16}},
        {"heads": {digest(b"x").hex().upper(): "a" * 16}},
        {"fork_version": "00"},
        {"title": 7},
        {"title": "x" * 5000},
        {"more": 1},
    ],
)
def test_any_other_entry_is_refused(change: dict[str, object]) -> None:
    whole = {
        "session": "s",
        "title": "",
        "fork_session": None,
        "fork_version": FIRST_VERSION.id.hex(),
        "heads": {digest(b"x").hex(): "a" * 16},
    }
    data = canonical({**whole, **change})  # type: ignore[arg-type]
    with pytest.raises(DamagedBlob):
        session_heads_from_blob(data, digest(data))
    with pytest.raises(DamagedBlob):
        session_heads_from_blob(data, digest(b"other"))


def test_of_two_origins_of_one_session_every_replica_takes_the_same() -> None:
    one, other = Origin("b", None, FIRST_VERSION.id), Origin("a", "t", FIRST_VERSION.id)
    assert one.first(other) == other.first(one)
