"""What a replica makes of history it cannot accept: bad versions are kept as history, bad bytes not at all."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from cks_runtime.model import gossip_exchange as exchanges
from cks_runtime.model import gossip_rules as rules
from cks_runtime.model.canon import canonical, digest
from cks_runtime.model.errors import DamagedBlob
from cks_runtime.model.gossip_heads import Origin
from cks_runtime.model.gossip_messages import Message, decode, encode
from cks_runtime.model.gossip_walk import check_object
from cks_runtime.model.history import FIRST_VERSION, Version
from cks_runtime.model.knowledge import make_object
from cks_runtime.model.trie import new_nodes
from tests.sim.replica import KEYS, Replica, empty

A, B = "a" * 16, "b" * 16


def pair() -> tuple[Replica, Replica]:
    return tuple(Replica(id, {id: rules.Peer(id)}, Random(1)) for id in (A, B))  # type: ignore[return-value]


def exchange(a: Replica, b: Replica, spoil: Any = None) -> exchanges.Exchanged:
    """One whole exchange that `a` begins; `spoil` may change what `b` replies."""
    steps = exchanges.dial(a.id, a.heard, "x", KEYS)
    reply: Message | None = None
    while True:
        try:
            sending = a.run(steps, reply)
        except StopIteration as stop:
            done: exchanges.Exchanged = stop.value
            return done
        reply = decode(b.handle(a.id, encode(sending.message)))
        if spoil is not None:
            reply = spoil(reply)


def session(replica: Replica, session_id: str, *objects: Any) -> None:
    """A session with these objects, whatever is wrong with them."""
    replica.make_session(session_id, Origin("", None, FIRST_VERSION.id), FIRST_VERSION.id)
    replica.commit(session_id, empty().with_changes({o.id: o for o in objects}), False, (), 1)


def thing(id: str, **structure: Any) -> Any:
    return make_object(id, "Thing", id, structure)


def test_a_version_with_an_error_is_history_and_a_conflict_of_kind_refused() -> None:
    a, b = pair()
    session(b, "bad", thing("r", participants=["x", "y"], relation_type="near"))
    session(b, "good", thing("x"))
    exchange(a, b)
    assert a.sessions["good"].own == b.sessions["good"].own
    assert a.sessions["bad"].own == FIRST_VERSION.id
    assert b.sessions["bad"].own in a.refused
    (record,) = a.records.values()
    assert record.finding.about["kind"] == "refused" and record.finding.about["conflicts"] == ["r"]
    assert a.look().trie.root == b.look().trie.root


def test_a_refused_head_that_was_mended_is_taken() -> None:
    a, b = pair()
    session(b, "s", thing("r", participants=["x", "y"], relation_type="near"))
    exchange(a, b)
    b.commit("s", empty().with_changes({"x": thing("x")}), False, (), 2)
    exchange(a, b)
    assert a.sessions["s"].own == b.sessions["s"].own
    assert [record.state for record in a.records.values()] == ["closed"]


def test_a_record_made_by_hand_is_refused_by_gossip_too() -> None:
    a, b = pair()
    fields = {
        "url": "https://example.org/",
        "final_url": "https://example.org/",
        "http_status": 200,
        "checked_at": "2026-01-01T00:00:00Z",
        "checked_via": "manual_review",
        "subject_id": "x",
        "subject_hash": thing("x").hash.hex(),
        "signature": "0" * 64,
        "key_id": "k",
    }
    record = make_object("v", "VerificationRecord", "v", fields)  # type: ignore[arg-type]
    link = make_object("l", "Relation", "l", {"participants": ["x", "v"], "relation_type": "verified_by"})
    session(b, "s", thing("x"), record, link)
    exchange(a, b)
    assert "v" not in a.graph_of(a.sessions["s"].own)


@pytest.mark.parametrize("spoiled", [b'{"identity":{},"structure":{}}', b"{", b'{"a": 1}', b"\xff"])
def test_bytes_that_are_no_object_leave_their_session_alone(spoiled: bytes) -> None:
    a, b = pair()
    session(b, "good", thing("x"))
    session(b, "bad", thing("y"))
    # the object's place in the graph holds other bytes under their true name
    b.objects[digest(spoiled)] = spoiled
    leaf = canonical({"entries": {"y": digest(spoiled).hex()}})
    b.nodes[digest(leaf)] = leaf
    wrong = Version((b.sessions["bad"].own,), digest(leaf), False, "", "", 2)
    b.keep_version(wrong)
    b.sessions["bad"].own, b.sessions["bad"].heads, b.view = wrong.id, {wrong.id: B}, None
    done = exchange(a, b)
    assert a.sessions["good"].own == b.sessions["good"].own
    assert [name for name, _ in done.pulled.refused] == ["bad"]
    assert "bad" not in a.sessions and wrong.id not in a.versions


def test_a_peer_that_offers_what_it_does_not_have_changes_nothing() -> None:
    a, b = pair()
    session(b, "s", thing("x"))
    b.look()
    b.versions.pop(b.sessions["s"].own)
    done = exchange(a, b)
    assert [name for name, _ in done.pulled.refused] == ["s"] and not a.sessions


def test_two_replicas_that_made_one_session_agree_on_its_title() -> None:
    a, b = pair()
    a.make_session("s", Origin("b", None, FIRST_VERSION.id), FIRST_VERSION.id)
    b.make_session("s", Origin("a", None, FIRST_VERSION.id), FIRST_VERSION.id)
    exchange(a, b)
    assert a.sessions["s"].origin == b.sessions["s"].origin
    assert a.look().trie.root == b.look().trie.root


def test_an_entry_that_is_none_leaves_the_other_sessions_alone() -> None:
    a, b = pair()
    session(b, "good", thing("x"))
    view = b.look()
    broken = canonical({"session": "bad"})
    b.map_blobs[digest(broken)] = broken
    trie = view.trie.update({"bad": digest(broken)})
    b.map_blobs.update(new_nodes(view.trie, trie))
    b.view = exchanges.View(trie, view.entries)
    done = exchange(a, b)
    assert [name for name, _ in done.pulled.refused] == ["bad"]
    assert a.sessions["good"].own == b.sessions["good"].own


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels - 1):
        value = [value]
    return {"n": value}


def test_an_object_as_deep_as_a_session_takes_is_taken_and_no_deeper_one() -> None:
    fine = make_object("x", "Thing", "x", nested(100))
    check_object(fine.hash, fine.blob())
    deep = canonical({"identity": {"id": "x", "type": "T", "name": "x"}, "structure": nested(101)})
    with pytest.raises(DamagedBlob):
        check_object(digest(deep), deep)
