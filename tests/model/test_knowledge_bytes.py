"""Objects as bytes: canonical documents, stored blobs, damage; and the ids of sessions."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cks_runtime.model.canon import Json, canonical, digest, parse_exact
from cks_runtime.model.errors import DamagedBlob, InvalidParameter
from cks_runtime.model.knowledge import (
    KObject,
    check_session_id,
    dump_bytes,
    dump_knowledge,
    format_faults,
    make_object,
    object_from_blob,
    parse_knowledge,
)

PLUTO = make_object("pluto", "Body", "Pluto", {"radius_km": 1188.3, "valid_until": "2027-01-01T00:00:00Z"})
ORBITS = make_object(
    "r1", "Relation", "orbits", {"participants": ["pluto", "sun"], "relation_type": "orbits"}
)

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ids
)
structures = st.dictionaries(ids, scalars | st.lists(scalars), max_size=4).filter(
    lambda structure: not {"participants", "relation_type"} & structure.keys()
)
objects = st.builds(make_object, ids, ids, ids, structures)


@settings(deadline=None, max_examples=40)
@given(st.lists(objects, unique_by=lambda obj: obj.id, max_size=5), st.randoms())
def test_what_is_written_reads_as_itself_in_any_order(objs: list[KObject], random: Random) -> None:
    document = dump_knowledge(objs)
    data = dump_bytes(objs)
    shuffled = list(objs)
    random.shuffle(shuffled)
    assert data == canonical(document) == dump_bytes(shuffled)
    assert (
        parse_knowledge(parse_exact(data))
        == parse_knowledge(document)
        == sorted(objs, key=lambda obj: obj.id)
    )
    assert document["version"] == "1.0"


def test_a_document_has_its_objects_by_id() -> None:
    document = dump_knowledge([ORBITS, PLUTO])
    assert document == {"version": "1.0", "objects": [PLUTO.as_json(), ORBITS.as_json()]}
    assert dump_bytes([]) == b'{"objects":[],"version":"1.0"}'


# ---- stored form


@settings(deadline=None, max_examples=60)
@given(objects)
def test_a_blob_gives_back_its_object(obj: KObject) -> None:
    again = object_from_blob(obj.blob(), obj.hash)
    assert again == obj
    assert (again.id, again.type, again.name, again.size) == (obj.id, obj.type, obj.name, obj.size)
    assert repr(sorted(again.structure.items())) == repr(sorted(obj.structure.items()))


@pytest.mark.parametrize(
    "number", [2.0**60, 1e16, -1e20, 9007199254740992, 2.0**64, 1e21, 123456789012345.6, 2**53 - 1]
)
def test_a_blob_gives_back_numbers_of_any_size(number: float) -> None:
    obj = make_object("x", "T", "X", {"n": number, "signature": "1234567890" * 4})
    again = object_from_blob(obj.blob(), obj.hash)
    assert repr(again.structure["n"]) == repr(obj.structure["n"])


@pytest.mark.parametrize(
    "value",
    [None, 1, [], {}, {"entries": {}}, {"identity": {}, "structure": {}}, {"identity": [], "structure": {}}],
)
def test_a_blob_of_another_kind_is_no_object(value: Json) -> None:
    data = canonical(value)
    with pytest.raises(DamagedBlob, match="are not an object"):
        object_from_blob(data, digest(data))


@pytest.mark.parametrize("spoil", [0, 40, -1])
def test_a_changed_byte_is_found(spoil: int) -> None:
    obj = PLUTO
    data = bytearray(obj.blob())
    data[spoil] ^= 1
    with pytest.raises(DamagedBlob, match=f"object {obj.hash.hex()} do not match their hash"):
        object_from_blob(bytes(data), obj.hash)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b'{"identity":1}', b"[" * 2000, b'"' + b"9" * 20 + b'"', b"9" * 400]
)
def test_blobs_that_are_not_json_are_damaged(data: bytes) -> None:
    with pytest.raises(DamagedBlob):
        object_from_blob(data, digest(data))


def test_the_format_of_foreign_objects_can_be_checked() -> None:
    assert list(format_faults(ORBITS)) == []
    foreign = KObject("", "T", "X", {"participants": ["a"]}, bytes(32), 1)
    faults = " | ".join(format_faults(foreign))
    assert "identity.id is ''" in faults
    assert "but not 'relation_type'" in faults
    assert "has 1 object id(s)" in faults


# ---- session ids


@pytest.mark.parametrize("text", ["main", "A", "0", "a.b_c-d", "x" * 64])
def test_session_ids(text: str) -> None:
    assert check_session_id(text) == text


@pytest.mark.parametrize(
    "text", ["", ".a", "-a", "_a", "a b", "a@b", "a\n", "ä", "x" * 65, "a/b", None, 3, ["a"], "\ud800"]
)
def test_what_cannot_name_a_session(text: object) -> None:
    with pytest.raises(InvalidParameter, match="is not a session id") as caught:
        check_session_id(text)
    caught.value.message.encode()
