"""Laws of the Merkle trie: shape follows content, cost follows change, nothing malformed is loaded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cks_runtime.model.canon import Hash, Json, canonical, digest
from cks_runtime.model.errors import DamagedBlob
from cks_runtime.model.trie import (
    EMPTY_ROOT,
    EMPTY_TRIE,
    LEAF_MAX,
    REQUEST_MAX,
    Branch,
    Leaf,
    Node,
    Trie,
    diff,
    load,
    new_nodes,
)

Blobs = dict[Hash, bytes]


def key(id: str) -> str:
    return sha256(id.encode()).hexdigest()


def value(seed: object) -> Hash:
    return sha256(repr(seed).encode()).digest()


def crowd(prefix: str, count: int) -> list[str]:
    """Ids whose keys begin alike, so that few of them make a deep trie."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        if key(f"c{number}").startswith(prefix):
            found.append(f"c{number}")
        number += 1
    return found


CROWD = crowd("00", 50)
ODD = ["", "é", "e\u0301", "\U0001f680", "\ue000", '\x00\x1f"\\/\u2028', "x" * 512]
POOL = [*CROWD, *ODD, *(f"n{i}" for i in range(60))]


def at_once(entries: Mapping[str, Hash]) -> Trie:
    return EMPTY_TRIE.update(entries)


def blobs_of(trie: Trie) -> Blobs:
    return dict(new_nodes(EMPTY_TRIE, trie))


def put(blobs: Blobs, value: Json) -> Hash:
    blob = canonical(value)
    blobs[digest(blob)] = blob
    return digest(blob)


def spelled(entries: Mapping[str, Hash], blobs: Blobs, depth: int = 0) -> Hash:
    """The trie written down from its definition alone."""
    if len(entries) <= LEAF_MAX:
        return put(blobs, {"entries": {id: value.hex() for id, value in entries.items()}})
    children: dict[str, Json] = {}
    for digit in "0123456789abcdef":
        below = {id: value for id, value in entries.items() if key(id)[depth] == digit}
        if below:
            children[digit] = [spelled(below, blobs, depth + 1).hex(), len(below)]
    return put(blobs, {"children": children})


def run(root: Hash, blobs: Mapping[Hash, bytes], like: Trie | None = None) -> tuple[Trie, list[list[Hash]]]:
    """Load, and what was asked for."""
    asked: list[list[Hash]] = []
    loading = load(root, like)
    try:
        wanted = next(loading)
        while True:
            asked.append(wanted)
            wanted = loading.send({hash: blobs[hash] for hash in wanted if hash in blobs})
    except StopIteration as stop:
        return stop.value, asked


def numbered(count: int) -> dict[str, Hash]:
    return {f"obj-{i}": value(i) for i in range(count)}


ids = st.one_of(st.sampled_from(POOL), st.text(st.characters(exclude_categories=["Cs"]), max_size=5))
entries_ = st.dictionaries(ids, st.integers(0, 3).map(value), max_size=130)
many = st.sets(st.sampled_from(POOL), min_size=25).map(lambda ids: {id: value(id) for id in ids})
contents = st.one_of(entries_, many)


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
    honest = Leaf.hash.fget
    assert honest is not None

    def counted(leaf: Leaf) -> Hash:
        nonlocal seen
        seen += 1
        return honest(leaf)

    monkeypatch.setattr(Leaf, "hash", property(counted))
    assert [id for id, _, _ in diff(base, after)] == ["obj-9"]
    assert seen <= 64


def refused(root: Hash, blobs: Mapping[Hash, bytes], named: Hash, reason: str = ".") -> None:
    with pytest.raises(DamagedBlob, match=reason) as caught:
        run(root, blobs)
    assert caught.value.details["node_hash"] == named.hex()
    assert named.hex() in caught.value.message


HEX = value("x").hex()
FULL = {id: value(id).hex() for id in CROWD[:LEAF_MAX]}

MALFORMED: dict[str, bytes] = {
    "not JSON": b"{",
    "no bytes": b"",
    "not UTF-8": b'{"entries":{"\xff":"' + HEX.encode() + b'"}}',
    "NaN": b'{"entries":{"a":NaN}}',
    "deep": b'{"entries":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "lone surrogate": b'{"entries":{"\\ud800":"' + HEX.encode() + b'"}}',
    "a list": b"[]",
    "null": b"null",
    "a number": b"1e999",
    "no key": b"{}",
    "another key": b'{"leaf":{}}',
    "both keys": b'{"children":{},"entries":{}}',
    "a further key": canonical({"entries": {"a": HEX}, "x": 1}),
    "entries a list": b'{"entries":[]}',
    "children a list": b'{"children":[]}',
    "no child": b'{"children":{}}',
    "spaces": b'{"entries": {"a":"' + HEX.encode() + b'"}}',
    "trailing newline": canonical({"entries": {"a": HEX}}) + b"\n",
    "byte order mark": b"\xef\xbb\xbf" + canonical({"entries": {"a": HEX}}),
    "unsorted": b'{"entries":{"b":"%s","a":"%s"}}' % (HEX.encode(), HEX.encode()),
    "by code point, not UTF-16": f'{{"entries":{{"\ue000":"{HEX}","\U0001f680":"{HEX}"}}}}'.encode(),
    "a doubled id": b'{"entries":{"a":"%s","a":"%s"}}' % (HEX.encode(), HEX.encode()),
    "an escape": b'{"entries":{"\\u0061":"%s"}}' % HEX.encode(),
    "upper-case hex": canonical({"entries": {"a": HEX.upper()}}),
    "short hex": canonical({"entries": {"a": HEX[:-2]}}),
    "odd hex": canonical({"entries": {"a": HEX[:-1]}}),
    "hex with spaces": canonical({"entries": {"a": " " + HEX[1:-1] + " "}}),
    "hex in other digits": canonical({"entries": {"a": "٣" * 64}}),
    "no hex": canonical({"entries": {"a": "g" * 64}}),
    "hash a number": canonical({"entries": {"a": 5}}),
    "hash null": canonical({"entries": {"a": None}}),
    "leaf too large": canonical({"entries": {**FULL, "one more": HEX}}),
    "branch that should be a leaf": canonical({"children": {"0": [HEX, 20], "1": [value(2).hex(), 12]}}),
    "child of no digit": canonical({"children": {"g": [HEX, 40]}}),
    "child of two digits": canonical({"children": {"00": [HEX, 40]}}),
    "child of an upper-case digit": canonical({"children": {"A": [HEX, 40]}}),
    "empty child": canonical({"children": {"0": [HEX, 40], "1": [value(2).hex(), 0]}}),
    "negative count": canonical({"children": {"0": [HEX, 80], "1": [value(2).hex(), -1]}}),
    "count true": canonical({"children": {"0": [HEX, 80], "1": [value(2).hex(), True]}}),
    "count a fraction": b'{"children":{"0":["%s",40.5]}}' % HEX.encode(),
    "count with a point": b'{"children":{"0":["%s",40.0]}}' % HEX.encode(),
    "count with an exponent": b'{"children":{"0":["%s",4e1]}}' % HEX.encode(),
    "count a string": b'{"children":{"0":["%s","40"]}}' % HEX.encode(),
    "count huge": b'{"children":{"0":["%s",9007199254740992]}}' % HEX.encode(),
    "count beyond all bounds": b'{"children":{"0":["%s",1%s]}}' % (HEX.encode(), b"0" * 400),
    "child a hash only": canonical({"children": {"0": HEX}}),
    "child of three": canonical({"children": {"0": [HEX, 40, 1]}}),
    "child null": canonical({"children": {"0": None}}),
    "child's upper-case hex": canonical({"children": {"0": [HEX.upper(), 40]}}),
    "child's hash null": canonical({"children": {"0": [None, 40]}}),
}


@pytest.mark.parametrize("blob", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_node_is_refused_by_name(blob: bytes) -> None:
    refused(digest(blob), {digest(blob): blob}, digest(blob))


@pytest.mark.parametrize("blob", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_node_is_refused_below_a_branch(blob: bytes) -> None:
    content = {id: value(id) for id in CROWD[:40]} | numbered(200)
    blobs = blobs_of(at_once(content))
    top = json.loads(blobs[at_once(content).root])
    top["children"]["7"] = [digest(blob).hex(), top["children"]["7"][1]]
    root = put(blobs, top)
    blobs[digest(blob)] = blob
    refused(root, blobs, digest(blob))


def test_missing_and_altered_nodes_are_refused() -> None:
    trie = at_once(numbered(300))
    whole = blobs_of(trie)
    for hash, blob in whole.items():
        refused(trie.root, {h: b for h, b in whole.items() if h != hash}, hash, "missing")
        refused(trie.root, {**whole, hash: blob[:-1]}, hash, "another hash")
        refused(trie.root, {**whole, hash: whole[trie.root] + b" "}, hash, "another hash")


def test_an_entry_under_the_wrong_digits_is_refused() -> None:
    content = {id: value(id) for id in CROWD} | numbered(100)
    blobs = blobs_of(at_once(content))
    top = json.loads(blobs[at_once(content).root])
    digit, other = "1", "2"
    one, two = top["children"][digit], top["children"][other]
    swapped = {**top["children"], digit: two, other: one}
    root = put(blobs, {"children": swapped})
    refused(root, blobs, bytes.fromhex(two[0]), "does not belong")


@pytest.mark.parametrize("wrong", [-1, 1, 1_000])
def test_a_wrong_count_is_refused_and_blamed_on_the_parent(wrong: int) -> None:
    content = {id: value(id) for id in CROWD} | numbered(600)
    trie = at_once(content)
    for digit in "05":
        blobs = blobs_of(trie)
        top = json.loads(blobs[trie.root])
        top["children"][digit][1] += wrong
        root = put(blobs, top)
        refused(root, blobs, root, "entries")


@pytest.mark.parametrize("count", [1, 33])
def test_an_empty_child_is_refused_whatever_its_parent_says(count: int) -> None:
    trie = at_once({id: value(id) for id in CROWD})
    blobs = blobs_of(trie)
    empty = put(blobs, {"entries": {}})
    top = json.loads(blobs[trie.root])
    root = put(blobs, {"children": {**top["children"], "1": [empty.hex(), count]}})
    refused(root, blobs, root, "the child has 0")


def test_a_tree_that_refers_to_one_node_many_times_is_refused_at_once() -> None:
    blobs: Blobs = {}
    child = put(blobs, {"entries": {"a": HEX}})
    count = 1_000
    for _ in range(10):
        child = put(blobs, {"children": {d: [child.hex(), count] for d in "0123456789abcdef"}})
        count *= 16
    refused(child, blobs, child, "more than one place")


def test_a_chain_deeper_than_a_key_is_refused_without_recursion() -> None:
    blobs: Blobs = {}
    chain = [put(blobs, {"children": {"0": [HEX, 40]}})]
    for _ in range(2_000):
        chain.append(put(blobs, {"children": {"0": [chain[-1].hex(), 40]}}))
    refused(chain[-1], blobs, chain[-1 - 64], "64 digits")


def damage(blob: bytes, chance: random.Random) -> bytes:
    spot = chance.randrange(len(blob))
    edits: list[Callable[[], bytes]] = [
        lambda: blob[:spot] + bytes([chance.randrange(256)]) + blob[spot + 1 :],
        lambda: blob[:spot] + blob[spot + 1 :],
        lambda: blob[:spot] + chance.choice([b"0", b" ", b'"', b",", b"}", b"[", b"\\"]) + blob[spot:],
        lambda: blob[:spot] + blob[spot : spot + 70] + blob[spot:],
        lambda: blob[:spot] + blob[spot + chance.randrange(1, 150) :],
    ]
    return chance.choice(edits)()


@settings(max_examples=300)
@given(st.integers(20, 700), st.randoms(use_true_random=False))
def test_whatever_loads_is_the_one_trie_of_its_content(count: int, chance: random.Random) -> None:
    """Damage a node and re-hash the path above it, as a hostile peer would."""
    trie = at_once(numbered(count))
    blobs = blobs_of(trie)
    root = damaged_somewhere(trie.top, blobs, chance)
    try:
        loaded, _ = run(root, blobs)
    except DamagedBlob as error:
        assert bytes.fromhex(str(error.details["node_hash"])) in blobs or "missing" in error.message
    else:
        assert loaded.root == root == at_once(dict(loaded.items())).root


def damaged_somewhere(node: Node, blobs: Blobs, chance: random.Random) -> Hash:
    blob = node.blob()
    if isinstance(node, Branch) and chance.random() < 0.7:
        digit = chance.choice(sorted(node.children))
        spoiled = damaged_somewhere(node.children[digit], blobs, chance)
        blob = blob.replace(node.children[digit].hash.hex().encode(), spoiled.hex().encode())
    else:
        blob = damage(blob, chance)
    blobs[digest(blob)] = blob
    return digest(blob)
