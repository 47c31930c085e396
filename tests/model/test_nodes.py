"""A trie node that is missing, altered, misplaced or malformed is refused by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trie_building import CROWD, Blobs, at_once, blobs_of, numbered, put, run, value

from cks_runtime.model.canon import Hash, canonical, digest
from cks_runtime.model.errors import DamagedBlob
from cks_runtime.model.nodes import LEAF_MAX, Branch, Node


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


def test_a_wrong_count_of_a_part_at_hand_is_refused_too() -> None:
    like = at_once(numbered(600))
    blobs = blobs_of(like)
    top = json.loads(blobs[like.root])
    top["children"]["5"][1] += 1
    root = put(blobs, top)
    with pytest.raises(DamagedBlob, match="entries, the child has") as caught:
        run(root, blobs, like)
    assert caught.value.details["node_hash"] == root.hex()


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


@settings(max_examples=300, deadline=None)
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
