"""The knowledge format: strict reading, errors that name what is wrong, canonical writing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cks_runtime.model.canon import content_id, digest, parse_exact
from cks_runtime.model.errors import InvalidKnowledge, TooLarge
from cks_runtime.model.knowledge import (
    DEFAULT_LIMITS,
    Limits,
    make_object,
    object_from_json,
    parse_knowledge,
)

PLUTO = {
    "identity": {"id": "pluto", "type": "Body", "name": "Pluto"},
    "structure": {"radius_km": 1188.3, "valid_until": "2027-01-01T00:00:00Z"},
}
ORBITS = {
    "identity": {"id": "r1", "type": "Relation", "name": "orbits"},
    "structure": {"participants": ["pluto", "sun"], "relation_type": "orbits"},
}


def problems(value: object, limits: Limits = DEFAULT_LIMITS) -> list[Mapping[str, object]]:
    with pytest.raises(InvalidKnowledge) as caught:
        parse_knowledge(value, limits)
    found = caught.value.details["diagnostics"]
    assert isinstance(found, list)
    json.dumps(found, ensure_ascii=False).encode()
    for problem in found:
        assert problem["severity"] == "ERROR"
        assert len(str(problem["message"])) < 500
    assert str(found[0]["message"]) in caught.value.message
    return found


def problem(structure: object = None, **identity: object) -> Mapping[str, object]:
    """The only problem of a document with this one object."""
    entry = {"identity": {"id": "x", "type": "T", "name": "X"} | identity, "structure": structure or {}}
    (only,) = problems({"objects": [entry]})
    return only


# ---- objects


def test_an_object_is_named_by_its_content() -> None:
    obj = object_from_json(PLUTO)
    assert (obj.id, obj.type, obj.name) == ("pluto", "Body", "Pluto")
    assert obj.structure == PLUTO["structure"]
    assert obj.as_json() == PLUTO
    assert obj.blob() == (
        b'{"identity":{"id":"pluto","name":"Pluto","type":"Body"},'
        b'"structure":{"radius_km":1188.3,"valid_until":"2027-01-01T00:00:00Z"}}'
    )
    assert obj.hash == digest(obj.blob()) == content_id(obj.as_json())
    assert obj.size == len(obj.blob())


def test_equality_follows_the_hash() -> None:
    one = make_object("a", "T", "A", {"x": 1, "y": [True]})
    same = make_object("a", "T", "A", {"y": (True,), "x": 1.0})
    other = make_object("a", "T", "A", {"x": True, "y": [1]})
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "a"
    assert len({one, same, other}) == 2


def test_relations_are_the_objects_with_participants() -> None:
    assert object_from_json(ORBITS).is_relation
    assert not object_from_json(PLUTO).is_relation


def test_an_absent_structure_is_an_empty_one() -> None:
    identity = {"id": "x", "type": "T", "name": "X"}
    assert object_from_json({"identity": identity}) == object_from_json(
        {"identity": identity, "structure": {}}
    )


def test_an_object_shares_nothing_with_its_input() -> None:
    tags = ["a"]
    obj = make_object("x", "T", "X", {"tags": tags})
    tags.append("b")
    assert obj.structure == {"tags": ["a"]}


@pytest.mark.parametrize("length", [1, 512])
def test_names_may_have_up_to_512_characters(length: int) -> None:
    text = "😀" * length
    assert make_object(text, text, text, {}).id == text


def test_a_relation_may_name_one_participant_twice() -> None:
    make_object("r", "R", "r", {"participants": ["a", "a"], "relation_type": "is"})


def test_a_rule_of_one_relation_type_joins_nothing() -> None:
    make_object("f", "FunctionalRelationRule", "one capital", {"relation_type": "has_capital"})


# ---- refusals


@pytest.mark.parametrize(
    ("value", "location", "message"),
    [
        (None, "$", "the knowledge is null"),
        ([], "$", "the knowledge is a list"),
        ("{}", "$", "the knowledge is '{}'"),
        ({}, "objects", "'objects' is missing"),
        ({"objects": None}, "objects", "objects is null; it must be a list"),
        ({"objects": {}}, "objects", "objects is an object"),
        ({"objects": "x"}, "objects", "objects is 'x'; it must be a list"),
        ({"objects": [], "version": "2.0"}, "version", "version is '2.0'; only '1.0'"),
        ({"objects": [], "version": 1.0}, "version", "version is 1.0; only '1.0'"),
        ({"objects": [], "version": None}, "version", "version is null"),
        ({"objects": [], "Objects": []}, "$", "unknown key 'Objects'; allowed are 'version', 'objects'"),
        ({"objects": [], 3: 4}, "$", "unknown key 3"),
        ({"objects": ["x"]}, "objects[0]", "objects[0] is 'x'; it must be an object"),
        ({"objects": [[PLUTO]]}, "objects[0]", "objects[0] is a list"),
        ({"objects": [PLUTO, {}]}, "objects[1]", "objects[1]: 'identity' is missing"),
        ({"objects": [{"identity": "pluto"}]}, "objects[0]", "identity is 'pluto'; it must be an object"),
        ({"objects": [{**PLUTO, "extra": 1}]}, "pluto", "object 'pluto' (objects[0]): unknown key 'extra'"),
    ],
)
def test_what_is_no_knowledge_is_refused_by_place(value: object, location: str, message: str) -> None:
    (found,) = problems(value)
    assert found["code"] == "CKS-STRUCT-FORMAT"
    assert found["location"] == location
    assert message in str(found["message"])


@pytest.mark.parametrize("key", ["id", "type", "name"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "is ''; it must have 1 to 512 characters"),
        ("n" * 513, "of 513 characters; it must have 1 to 512 characters"),
        (7, "is 7; it must be a string"),
        (None, "is null; it must be a string"),
        (True, "is true; it must be a string"),
        (["a"], "is a list of 1; it must be a string"),
        ("a\ud800", "has the lone surrogate U+D800"),
        (["a", 10**5000], "is a list of 2; it must be a string"),
    ],
)
def test_identities_are_three_texts(key: str, value: object, message: str) -> None:
    found = problem(**{key: value})
    assert f"identity.{key} is " in str(found["message"])
    assert message in str(found["message"])
    assert found["location"] == ("objects[0]" if key == "id" else "x")
    assert "objects[0]" in str(found["message"])


def test_identities_have_exactly_three_keys() -> None:
    assert "identity has the unknown key 'kind'" in str(problem(kind="k")["message"])
    (found,) = problems({"objects": [{"identity": {"id": "x", "type": "T"}}]})
    assert (
        found["message"] == "object 'x' (objects[0]): identity.name is missing; it must be a non-empty string"
    )


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ([1], "structure is a list of 1; it must be an object"),
        ("text", "structure is 'text'; it must be an object"),
        ({"participants": ["a", "b"]}, "structure has 'participants' but not 'relation_type'"),
        ({"relation_type": "r"}, "structure has 'relation_type' but not 'participants'"),
        ({"participants": "ab", "relation_type": "r"}, "structure.participants is 'ab'; it must be a list"),
        ({"participants": None, "relation_type": "r"}, "structure.participants is null"),
        ({"participants": {"a": 1}, "relation_type": "r"}, "structure.participants is an object"),
        ({"participants": ["a"], "relation_type": "r"}, "structure.participants has 1 object id(s)"),
        ({"participants": [], "relation_type": "r"}, "structure.participants has 0 object id(s)"),
        ({"participants": ["a", ""], "relation_type": "r"}, "structure.participants[1] is ''"),
        ({"participants": [1, "b", 3], "relation_type": "r"}, "structure.participants[0] is 1"),
        ({"participants": ["a", "b"], "relation_type": ""}, "structure.relation_type is ''"),
        ({"participants": ["a", "b"], "relation_type": ["r"]}, "structure.relation_type is a list of 1"),
        ({"radius_km": 9007199254740993}, "structure.radius_km: 9007199254740993 is not exactly a double"),
        ({"a": [{"b": 10**5000}]}, "structure.a[0].b: an integer of 16610 bits is outside the range"),
        ({"a": math.nan}, "structure.a: nan is not a JSON number"),
        ({"a": "\udc00"}, "structure.a: '\\udc00' has the lone surrogate U+DC00"),
        ({"\udc00": 1}, "structure: '\\udc00' has the lone surrogate U+DC00"),
        ({1: 1}, "structure: the key 1 is not a string"),
        ({"a": object()}, "structure.a: a value of type object is not JSON"),
    ],
)
def test_structures_are_checked(structure: object, message: str) -> None:
    found = problem(structure)
    assert found["code"] == "CKS-STRUCT-FORMAT"
    assert found["location"] == "x"
    assert str(found["message"]).startswith("object 'x' (objects[0]): ")
    assert message in str(found["message"])


def test_depth_counts_from_the_structure() -> None:
    def document(levels: int) -> dict[str, object]:
        inner: object = 1
        for _ in range(levels - 1):
            inner = [inner]
        return {"objects": [{"identity": {"id": "x", "type": "T", "name": "X"}, "structure": {"a": inner}}]}

    parse_knowledge(document(100))
    parse_exact(json.dumps(document(100)))
    for levels in (101, 900):
        (found,) = problems(document(levels))
        assert "nested deeper than 100 levels" in str(found["message"])
    (found,) = problems(document(4), Limits(depth=3))
    assert "nested deeper than 3 levels" in str(found["message"])


def test_an_id_is_given_once() -> None:
    (found,) = problems({"objects": [PLUTO, ORBITS, PLUTO]})
    assert found["code"] == "CKS-STRUCT-UNIQUE-IDENTITY"
    assert found["location"] == "pluto"
    assert found["message"] == "the id 'pluto' of objects[2] is that of objects[0] already; ids are unique"


def test_all_problems_are_told_at_once_up_to_a_hundred() -> None:
    bad = {"identity": {"id": 1, "type": "", "name": None}, "structure": {"relation_type": 5, "z": math.inf}}
    assert len(problems({"objects": [bad]})) == 6
    assert len(problems({"objects": [bad] * 3, "x": 1, "version": "0"})) == 20
    assert len(problems({"objects": [bad] * 50_000})) == 100
    assert len(problems({"objects": [], **{f"key {i}": 1 for i in range(500)}})) == 100
    assert len(problems({"objects": [{**PLUTO, **{f"key {i}": 1 for i in range(500)}}]})) == 100


def test_single_objects_are_refused_alike() -> None:
    with pytest.raises(InvalidKnowledge, match=r"^object 'x' \(operations\[3\]\): structure.a: nan"):
        make_object("x", "T", "X", {"a": math.nan}, where="operations[3]")
    with pytest.raises(
        InvalidKnowledge, match=r"^object: identity.id is 3; it must be a string \(and 1 more\)$"
    ):
        make_object(3, "T", "X", [])
    with pytest.raises(InvalidKnowledge, match=r"^object is null"):
        object_from_json(None)
    with pytest.raises(InvalidKnowledge, match=r"^object 'pluto': unknown key 'x'"):
        object_from_json({**PLUTO, "x": 1})


# ---- sizes


def test_sizes_are_limited_by_name() -> None:
    size = object_from_json(PLUTO).size
    assert parse_knowledge({"objects": [PLUTO]}, Limits(object_bytes=size, objects=1, request_bytes=size))
    with pytest.raises(TooLarge, match=f"object 'pluto' .objects.0.. has {size} bytes") as caught:
        parse_knowledge({"objects": [PLUTO]}, Limits(object_bytes=size - 1))
    assert "CKS_MAX_OBJECT_BYTES" in caught.value.hint
    with pytest.raises(TooLarge, match="has 2 objects; at most 1") as caught:
        parse_knowledge({"objects": [PLUTO, ORBITS]}, Limits(objects=1))
    assert "CKS_MAX_OBJECTS" in caught.value.hint
    with pytest.raises(TooLarge, match=f"has {size} bytes; at most {size - 1}") as caught:
        parse_knowledge({"objects": [PLUTO]}, Limits(request_bytes=size - 1))
    assert "CKS_MAX_REQUEST_BYTES" in caught.value.hint


# ---- documents


def test_other_tools_keys_are_ignored() -> None:
    value = {"version": "1.0", "_cks_export": {"by": math.nan}, "_cks_": None, "objects": [PLUTO, ORBITS]}
    assert [obj.id for obj in parse_knowledge(value)] == ["pluto", "r1"]
    assert parse_knowledge({"objects": []}) == []


def test_participants_may_stand_elsewhere() -> None:
    assert len(parse_knowledge({"objects": [ORBITS]})) == 1


hostile = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.just(10**400),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["objects", "identity", "structure", "id", "type", "name", "participants", "relation_type"]
            )
            | st.text()
            | st.integers(),
            inner,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=60)
@given(hostile)
def test_any_input_is_read_or_refused(value: object) -> None:
    wrapped = {"objects": [{"identity": {"id": "x", "type": "T", "name": "X"}, "structure": value}]}
    for document in (
        value,
        {"objects": value},
        {"objects": [value]},
        {"objects": [{"identity": value}]},
        wrapped,
    ):
        try:
            parse_knowledge(document)
        except InvalidKnowledge:
            problems(document)
