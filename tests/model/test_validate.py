"""Validation: a change is judged as exactly as the whole graph, and nothing crashes it."""

from __future__ import annotations

from building import CHECKED_MS, KEYS, accepted, codes, evolve, graph, proof, relation, step, thing
from hypothesis import given, settings
from hypothesis import strategies as st

from cks_runtime.model.diagnostics import DANGLING_REF, VERIFICATION_RECORD
from cks_runtime.model.errors import CksError, DamagedBlob
from cks_runtime.model.graph import EMPTY_GRAPH, Graph, changes
from cks_runtime.model.knowledge import KObject, make_object
from cks_runtime.model.operations import OPERATIONS, apply_operations
from cks_runtime.model.records import Keyring
from cks_runtime.model.validate import EXTENSIONS, check_all, check_change, warnings

# ---- random graphs, good and bad

IDS = ["a", "b", "c", "d", "e"]
KINDS = ["knows", "hates", "verified_by"]
FOREIGN = Keyring.of(b"some other key, also of 32 bytes")
some_id = st.sampled_from([*IDS, "nowhere"])
id_or_junk = some_id | st.sampled_from([None, 3, "", True, [], ["a"]])
things = st.builds(lambda id, n: thing(id, n=n), st.sampled_from(IDS), st.integers(0, 1))
relations = st.builds(
    lambda id, ends, kind: relation(id, *ends, kind=kind),
    st.sampled_from(IDS),
    st.lists(some_id, min_size=2, max_size=3),
    st.sampled_from(KINDS),
)
steps = st.builds(
    lambda id, conclusion, premises, confidence, next_id: thing(
        id,
        "InferenceStep",
        premises=premises,
        conclusion=conclusion,
        operator="deductive",
        confidence=confidence,
        superseded_by=next_id,
    ),
    st.sampled_from(IDS),
    id_or_junk,
    st.lists(some_id, max_size=2) | id_or_junk,
    st.sampled_from([0, 0.5, 1, 2, True]),
    id_or_junk | st.none(),
)


def _record(id: str, subject: KObject, keys: Keyring, changed: dict) -> KObject:
    added, _ = proof(subject, id, "unused", keys)
    return make_object(id, "VerificationRecord", added["identity"]["name"], {**added["structure"], **changed})


records = st.builds(
    _record,
    st.sampled_from(IDS),
    things | st.builds(step, st.sampled_from(IDS), st.just("a")),
    st.sampled_from([KEYS, KEYS, KEYS, FOREIGN]),
    st.just({})
    | st.fixed_dictionaries({"superseded_by": id_or_junk})
    | st.fixed_dictionaries({"subject_id": id_or_junk})
    | st.just({"checked_at": 5}),
)
rules = st.builds(
    lambda id, a, b: thing(id, "MutualExclusionRule", relation_type_a=a, relation_type_b=b),
    st.sampled_from(IDS),
    st.sampled_from([*KINDS, "", 3]),
    st.sampled_from(KINDS),
) | st.builds(
    lambda id, kind: thing(id, "FunctionalRelationRule", relation_type=kind),
    st.sampled_from(IDS),
    st.sampled_from(KINDS),
)
dated = st.builds(
    lambda id, at: thing(id, valid_until=at),
    st.sampled_from(IDS),
    st.sampled_from([None, "x", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"]),
)
objects = st.one_of(things, relations, relations, steps, steps, records, records, rules, dated)


def made(found: list[KObject]) -> Graph:
    return graph(*{obj.id: obj for obj in found}.values())


graphs = st.lists(objects, max_size=7).map(made)


def touched(before: Graph, after: Graph) -> list[str]:
    return [id for id, _, _ in changes(before, after)]


def is_introduction(diagnostic) -> bool:
    return diagnostic.code == VERIFICATION_RECORD and "is not the content of" in diagnostic.message


@settings(max_examples=200)
@given(graphs, graphs)
def test_a_change_is_judged_as_the_whole_is(before, after):
    found = check_change([before], after, touched(before, after), KEYS)
    every = check_all(after, KEYS)
    earlier = check_all(before, KEYS)
    assert [d for d in every if d not in earlier and d not in found] == []
    assert [d for d in found if d not in every and not is_introduction(d)] == []


@settings(max_examples=200)
@given(graphs, graphs, st.lists(st.tuples(st.sampled_from(IDS), st.booleans()), max_size=5))
def test_a_merge_is_judged_as_the_whole_is(ours, theirs, taken):
    """`after` mixes two sides, as a merge does; `touched` is what differs from ours."""
    after = ours.with_changes({id: theirs.get(id) for id, _ in taken})
    found = check_change([ours, theirs], after, touched(ours, after), KEYS)
    known = check_all(ours, KEYS)
    assert [d for d in check_all(after, KEYS) if d not in known and d not in found] == []


@given(graphs)
def test_without_parents_all_is_new(after):
    found = check_change([], after, after.ids(), KEYS)
    assert [d for d in found if not is_introduction(d)] == check_all(after, KEYS)
    assert [d for d in check_change([EMPTY_GRAPH], after, after.ids(), KEYS) if d not in found] == []


@given(graphs)
def test_nothing_touched_finds_nothing(some):
    assert check_change([some], some, [], KEYS) == []


# ---- random operations on good graphs

GOOD = accepted(
    graph(
        thing("a"),
        thing("b"),
        relation("r", "a", "b"),
        relation("rr", "r", "b"),
        step("s", "b", "a", superseded_by="t"),
        step("t", "b"),
        step("u", "b", "s", confidence=0.9),
        thing("f", "FunctionalRelationRule", relation_type="knows"),
    ),
    *proof(thing("a")),
    *proof(thing("a"), "rec2", "link2"),
    {"op": "update_object", "object_id": "rec", "structure_patch": {"superseded_by": "rec2"}},
)
known = st.sampled_from([*sorted(GOOD.ids()), "n1", "n2"])
patches = st.fixed_dictionaries(
    {},
    optional={
        "superseded_by": known | st.none(),
        "conclusion": known,
        "premises": st.lists(known, max_size=2),
        "participants": st.lists(known, min_size=2, max_size=2),
        "relation_type": st.sampled_from(KINDS),
        "subject_id": known,
        "confidence": st.sampled_from([0, 1, 2]),
        "valid_until": st.sampled_from(["x", None, "2026-01-01T00:00:00Z"]),
    },
)


def identities(kind: str):
    return st.fixed_dictionaries({"id": known, "type": st.just(kind), "name": st.just("N")})


ARGUMENTS = {
    "add_object": {"identity": identities("Thing"), "structure": patches},
    "update_object": {
        "object_id": known,
        "structure_patch": patches,
        "mode": st.sampled_from(["merge", "replace"]),
    },
    "rename_object": {"object_id": known, "new_name": st.just("M")},
    "remove_object": {"object_id": known},
    "add_relation": {
        "identity": identities("Relation"),
        "participants": st.lists(known, min_size=2, max_size=3),
        "relation_type": st.sampled_from(KINDS),
    },
    "remove_relation": {"relation_id": st.sampled_from(["r", "rr", "link", "link2", "n1"])},
    "record_inference": {
        "identity": identities("InferenceStep"),
        "premises": st.lists(known, max_size=2),
        "conclusion": known,
        "operator": st.just("deductive"),
        "confidence": st.sampled_from([0, 0.5, 2]),
        "supersedes": known | st.none(),
    },
    "resolve_inference_conflict": {
        "conclusion_id": st.just("b"),
        "winner_id": known,
        "reasoning": st.just("R"),
    },
}
operations = st.sampled_from(sorted(OPERATIONS)).flatmap(
    lambda name: st.fixed_dictionaries({"op": st.just(name), **ARGUMENTS[name]})
)


@settings(max_examples=150)
@given(st.lists(operations, min_size=1, max_size=5))
def test_what_check_change_accepts_has_no_error_at_all(ops):
    assert check_all(GOOD, KEYS) == []
    reached = GOOD
    for one in ops:
        try:
            applied = apply_operations(reached, [one])
        except CksError:
            continue
        found = check_change([reached], applied.graph, applied.touched, KEYS)
        assert [d for d in found if not is_introduction(d)] == check_all(applied.graph, KEYS)
        assert touched(reached, applied.graph) == sorted(applied.touched)
        assert not {*applied.cascade_relations, *applied.cascade_records} & set(applied.graph.ids())
        if not found:
            reached = applied.graph


# ---- references


def test_dangling_participants_are_named_once():
    _, found = evolve(graph(thing("a")), {"op": "add_object", **relation("r", "x", "a", "y", "x").as_json()})
    assert codes(found) == [DANGLING_REF]
    assert found[0].location == "r"
    assert "'x', 'y'" in found[0].message
    assert found[0].extra["object_ids"] == ["r", "x", "y"]


def test_a_thousand_missing_premises_are_one_short_error():
    _, found = evolve(
        graph(thing("c")), {"op": "add_object", **step("s", "c", *(f"p{i}" for i in range(1000))).as_json()}
    )
    (only,) = found
    assert "and 990 more" in only.message
    assert len(only.extra["object_ids"]) == 1001
    assert len(only.as_json()["object_ids"]) == 100


def test_a_received_object_that_breaks_the_format_is_an_error():
    """Objects of another replica are not made here, only hashed."""
    for structure in (
        {"participants": ["a"], "relation_type": "t"},
        {"participants": ["a", "a"]},
        {"relation_type": 3},
    ):
        strange = KObject("x", "Relation", "X", structure, b"h" * 32, 10)
        found = check_change([], graph(thing("a")).with_changes({"x": strange}), ["x"], KEYS)
        assert set(codes(found)) == {"CKS-STRUCT-FORMAT"}
    nameless = KObject("x", "", "", {}, b"h" * 32, 10)
    assert codes(check_all(EMPTY_GRAPH.with_changes({"x": nameless}), KEYS)) == ["CKS-STRUCT-FORMAT"] * 2


# ---- warnings


def test_warnings_come_only_when_named():
    old = step("old", "a", superseded_by="t")
    some = graph(
        thing("a", valid_until="2026-01-01T00:00:00Z"),
        old,
        step("t", "a"),
        step("u", "a", "old", confidence=1),
    )
    some = accepted(some, *proof(some["a"]))
    late = CHECKED_MS + 1000
    assert warnings(some, [], late, 0) == []
    assert codes(warnings(some, ["temporal"], late, 0)) == ["CKS-EXT-TEMPORAL-VALIDITY"]
    assert codes(warnings(some, ["provenance"], late, 0)) == ["CKS-EXT-PROVENANCE-EXPIRED"]
    assert codes(warnings(some, ["inference"], late, 0)) == [
        "CKS-EXT-INFERENCE-CONFIDENCE-CONFLICT",
        "CKS-EXT-STALE-PREMISE",
    ]
    assert codes(warnings(some, EXTENSIONS, late, 0, ["old"])) == [
        "CKS-EXT-INFERENCE-CONFIDENCE-CONFLICT",
        "CKS-EXT-STALE-PREMISE",
    ]
    assert codes(warnings(some, EXTENSIONS, late, 0, ["link"])) == []
    assert len(warnings(some, EXTENSIONS, late, 0, ["a"])) == 3


@given(graphs, st.lists(st.sampled_from([*IDS, "nowhere"]), max_size=3))
def test_a_scope_only_takes_away(some, scope):
    every = warnings(some, EXTENSIONS, 2**42, 5)
    assert [d for d in warnings(some, EXTENSIONS, 2**42, 5, scope) if d not in every] == []
    assert warnings(some, EXTENSIONS, 2**42, 5, some.ids()) == every
    assert all(d.severity == "WARNING" for d in every)


# ---- objects of any shape

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(0, 1)
    | st.sampled_from(["x", "y", "", "2026-01-01T00:00:00Z"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS_READ = [
    *("participants", "relation_type", "relation_type_a", "relation_type_b", "valid_until", "archived"),
    *(
        "premises",
        "conclusion",
        "operator",
        "confidence",
        "justification",
        "alternatives_considered",
        "superseded_by",
    ),
    *(
        "url",
        "final_url",
        "http_status",
        "checked_at",
        "checked_via",
        "subject_id",
        "subject_hash",
        "signature",
        "key_id",
    ),
]
TYPES = [
    "Thing",
    "Relation",
    "InferenceStep",
    "VerificationRecord",
    "MutualExclusionRule",
    "FunctionalRelationRule",
]
shapeless = st.builds(
    lambda id, type, structure: KObject(id, type, "N", structure, id.encode() * 32, 9),
    st.sampled_from(["x", "y"]),
    st.sampled_from(TYPES),
    st.dictionaries(st.sampled_from(KEYS_READ), json_values, max_size=6),
)


@settings(max_examples=150)
@given(st.lists(shapeless, max_size=2))
def test_no_shape_of_a_received_object_crashes_a_rule(found):
    some = made(found)
    assert check_change([EMPTY_GRAPH], some, some.ids(), KEYS) is not None
    assert check_all(some, KEYS) is not None
    assert warnings(some, EXTENSIONS, CHECKED_MS, 1) is not None


def test_a_damaged_object_is_an_error_by_name_and_hides_no_other() -> None:
    sound = graph(thing("a"), thing("b", valid_until="soon"), relation("r", "a", "b"))
    found = Graph(sound.trie, sound._objects.discard("a"), {"a": DamagedBlob("object 'a' is damaged")})
    assert sorted(d.location for d in check_all(found, KEYS)) == ["a", "b"]
    assert warnings(found, EXTENSIONS, CHECKED_MS, 1000) == []
