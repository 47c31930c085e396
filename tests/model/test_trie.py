"""Laws of the Merkle trie: shape follows content, and cost follows change."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trie_building import CROWD, POOL, Blobs, at_once, blobs_of, crowd, numbered, run, spelled, value

from cks_runtime.model.canon import Hash, digest
from cks_runtime.model.nodes import LEAF_MAX, Branch, Leaf
from cks_runtime.model.trie import EMPTY_ROOT, EMPTY_TRIE, REQUEST_MAX, diff, new_nodes

ids = st.one_of(st.sampled_from(POOL), st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
entries_ = st.dictionaries(ids, st.integers(0, 3).map(value), max_size=130)
many = st.sets(st.sampled_from(POOL), min_size=25).map(lambda ids: {id: value(id) for id in ids})
contents = st.one_of(entries_, many)


@settings(deadline=None)
@given(
    contents,
    st.lists(st.dictionaries(ids, st.none() | st.integers(0, 3).map(value), max_size=60), max_size=6),
)
def test_equal_content_has_an_equal_root_whatever_the_edits(
    start: dict[str, Hash], edits: list[dict[str, Hash | None]]
) -> None:
    trie, model = at_once(start), dict(start)
    for edit in edits:
        trie = trie.update(edit)
        model.update({id: v for id, v in edit.items() if v is not None})
        model = {id: v for id, v in model.items() if edit.get(id, v) is not None}
    blobs: Blobs = {}
    assert trie.root == spelled(model, blobs) == at_once(model).root
    assert trie == at_once(model) and hash(trie) == hash(at_once(model))
    assert dict(trie.items()) == model and len(trie) == len(model)
    assert all(trie.get(id) == model.get(id) for id in POOL)
    if model:
        assert blobs_of(trie) == blobs


@settings(deadline=None)
@given(many, st.randoms(use_true_random=False))
def test_order_does_not_matter_one_by_one(content: dict[str, Hash], chance: random.Random) -> None:
    order = list(content)
    chance.shuffle(order)
    trie = EMPTY_TRIE
    for id in order:
        trie = trie.update({id: content[id]})
    assert trie.root == at_once(content).root
    chance.shuffle(order)
    for id in order:
        trie = trie.update({id: None})
    assert trie.root == EMPTY_ROOT and len(trie) == 0


def test_branches_join_again_through_every_depth() -> None:
    deep = crowd("0000", 2)
    content = {id: value(id) for id in [*CROWD, *deep, *(f"n{i}" for i in range(400))]}
    full = at_once(content)
    for keep in (LEAF_MAX + 1, LEAF_MAX, 1, 0):
        kept = dict(list(content.items())[:keep])
        shrunk = full.update({id: None for id in content if id not in kept})
        assert shrunk.root == at_once(kept).root
        assert isinstance(shrunk.top, Branch) == (keep > LEAF_MAX)
        assert shrunk.update(content).root == full.root


def test_the_empty_trie() -> None:
    assert digest(b'{"entries":{}}') == EMPTY_ROOT
    assert list(new_nodes(EMPTY_TRIE, EMPTY_TRIE)) == []
    assert run(EMPTY_ROOT, {}) == (EMPTY_TRIE, [])
    assert list(new_nodes(at_once(numbered(40)), EMPTY_TRIE)) == [(EMPTY_ROOT, b'{"entries":{}}')]


def test_no_change_gives_the_same_trie() -> None:
    trie = at_once(numbered(500))
    assert trie.update({}) is trie
    assert trie.update({"obj-7": trie.get("obj-7"), "absent": None}) is trie
    assert "obj-7" in trie and "absent" not in trie and 7 not in trie


def test_an_id_that_is_not_text_is_refused_when_written_and_absent_when_read() -> None:
    trie = at_once(numbered(100))
    assert trie.get("\ud800") is None
    with pytest.raises(UnicodeEncodeError):
        trie.update({"\ud800": value(1)})


@pytest.mark.parametrize("count", [100, 5_000, 50_000])
def test_a_change_makes_few_nodes(count: int) -> None:
    base = at_once(numbered(count))
    base_root = base.root
    depth_max = 1 + next(d for d in range(9) if 16**d * 8 >= count)
    for changed in (1, 10):
        edit: dict[str, Hash | None] = {f"obj-{i}": value((i, "new")) for i in range(changed)}
        after = base.update(edit)
        made = dict(new_nodes(base, after))
        assert len(made) <= changed * depth_max
        assert after.root in made and base.root == base_root
        assert all(digest(blob) == hash for hash, blob in made.items())
        assert sum(map(len, made.values())) < changed * 8_000
        assert blobs_of(base).keys() | made.keys() >= blobs_of(after).keys()
    added = base.update({"another": value(1)})
    assert len(list(new_nodes(base, added))) <= depth_max + 16
    removed = base.update({"obj-3": None})
    assert len(list(new_nodes(base, removed))) <= depth_max


@pytest.mark.parametrize("count", [100, 5_000, 50_000])
def test_loading_beside_a_like_trie_asks_for_the_difference_only(count: int) -> None:
    base = at_once(numbered(count))
    after = base.update({"obj-1": value("x"), "obj-2": None, "another": value("y")})
    blobs = blobs_of(after)
    loaded, asked = run(after.root, blobs, base)
    assert loaded == after and dict(loaded.items()) == dict(after.items())
    assert {hash for page in asked for hash in page} == dict(new_nodes(base, after)).keys()
    assert sum(map(len, asked)) <= 16
    assert run(after.root, blobs, after) == (after, [])


def test_requests_go_by_level_and_are_bounded() -> None:
    trie = at_once(numbered(20_000))
    loaded, asked = run(trie.root, blobs_of(trie))
    assert loaded == trie and len(loaded) == 20_000
    assert [len(page) for page in asked[:3]] == [1, 16, 256]
    assert max(map(len, asked)) == REQUEST_MAX and len(asked) < 20
    assert len({hash for page in asked for hash in page}) == sum(map(len, asked))


@settings(deadline=None)
@given(contents, contents, st.booleans())
def test_diff_new_nodes_and_load_agree_with_plain_dicts(
    a: dict[str, Hash], b: dict[str, Hash], near: bool
) -> None:
    if near:
        b = {**a, **dict(list(b.items())[:3])}
    left, right = at_once(a), at_once(b)
    found = list(diff(left, right))
    expected = {(id, a.get(id), b.get(id)) for id in a.keys() | b.keys() if a.get(id) != b.get(id)}
    assert set(found) == expected and len(found) == len(expected)
    assert set(diff(right, left)) == {(id, y, x) for id, x, y in expected}
    made = dict(new_nodes(left, right))
    stored = {**blobs_of(left), **made}
    assert run(right.root, stored)[0] == right
    loaded, asked = run(right.root, made, left)
    assert loaded == right and dict(loaded.items()) == b
    assert {hash for page in asked for hash in page} <= made.keys()


def test_diff_touches_only_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    base = at_once(numbered(50_000))
    after, _ = run(base.update({"obj-9": value("x")}).root, blobs_of(base.update({"obj-9": value("x")})))
    seen = 0
    honest = Leaf.hash

    def counted(leaf: Leaf) -> Hash:
        nonlocal seen
        seen += 1
        return bytes(honest.__get__(leaf))

    monkeypatch.setattr(Leaf, "hash", property(counted))
    assert [id for id, _, _ in diff(base, after)] == ["obj-9"]
    assert seen <= 64
