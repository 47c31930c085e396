"""Verification records: what signs them, and that none that is not intact passes a commit."""

from __future__ import annotations

import pytest
from building import CHECKED_MS, KEYS, accepted, codes, evolve, graph, proof, relation, step, thing

from cks_runtime.model.diagnostics import UNVERIFIED_PROVENANCE, VERIFICATION_RECORD
from cks_runtime.model.operations import apply_operations
from cks_runtime.model.records import Keyring, derive_key, key_id, record_operations, sign, verify
from cks_runtime.model.validate import check_all, check_change

SUBJECT = thing("pluto", "Body", radius_km=1188.3)
BEFORE = graph(SUBJECT, thing("sun", "Body"))
VERIFIED = accepted(BEFORE, *proof(SUBJECT))
RECORD = VERIFIED["rec"]
FOREIGN = Keyring.of(b"some other key, also of 32 bytes")


def update(id: str, **patch: object) -> dict:
    return {"op": "update_object", "object_id": id, "structure_patch": patch}


def link(id: str, *ends: str, kind: str = "verified_by") -> dict:
    named = {"id": id, "type": "Relation", "name": "verified by"}
    return {"op": "add_relation", "identity": named, "participants": list(ends), "relation_type": kind}


def record_copy(id: str, **changes: object) -> dict:
    named = {"id": id, "type": "VerificationRecord", "name": RECORD.name}
    return {"op": "add_object", "identity": named, "structure": {**RECORD.structure, **changes}}


def refused(before, *operations) -> list[str]:
    _, found = evolve(before, *operations)
    assert found and all(d.severity == "ERROR" for d in found)
    return codes(found)


# ---- keys


def test_hkdf_of_the_rfc():
    """RFC 5869, test case 3: no salt, no info."""
    assert (
        derive_key(b"\x0b" * 22, "").hex()
        == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    )


def test_purposes_and_secrets_make_different_keys():
    assert len({derive_key(s, p) for s in (b"a" * 32, b"b" * 32) for p in ("records", "gossip")}) == 4


def test_a_keyring_tells_no_key():
    assert "key of these tests" not in repr(KEYS)
    assert KEYS.keys[KEYS.primary_id].hex() not in repr(KEYS)
    assert key_id(b"k" * 32) != key_id(b"l" * 32)
    with pytest.raises(ValueError, match="at least"):
        Keyring.of(b"short")
    with pytest.raises(ValueError, match="primary"):
        Keyring("other", {})


def test_a_ring_verifies_what_its_other_keys_signed():
    old, new = b"o" * 32, b"n" * 32
    (added, _) = proof(SUBJECT, keys=Keyring.of(old))
    record = apply_operations(BEFORE, [added]).graph["rec"]
    assert verify(record, Keyring.of(old)) and verify(record, Keyring.of(new, old))
    assert not verify(record, Keyring.of(new))


def test_sign_covers_every_field_and_the_identity():
    base = {"a": 1, "b": [1, 2]}
    shown = sign("id", "name", base, KEYS)["signature"]
    assert sign("id", "name", {**base, "superseded_by": "x"}, KEYS)["signature"] == shown
    others = [
        sign("id2", "name", base, KEYS),
        sign("id", "name2", base, KEYS),
        sign("id", "name", {"a": 2, "b": [1, 2]}, KEYS),
        sign("id", "name", {"a": 1, "b": [2, 1]}, KEYS),
        sign("id", "name", {**base, "c": None}, KEYS),
    ]
    assert len({shown, *(other["signature"] for other in others)}) == 6


# ---- good records


def test_record_operations_are_ready_to_commit():
    assert (RECORD.type, RECORD.structure["checked_at"]) == ("VerificationRecord", "2026-01-01T00:00:00Z")
    assert RECORD.structure["subject_hash"] == SUBJECT.hash.hex()
    assert VERIFIED["link"].structure == {"participants": ["pluto", "rec"], "relation_type": "verified_by"}
    assert check_all(VERIFIED, KEYS) == []
    assert check_change([], VERIFIED, VERIFIED.ids(), KEYS) == []


def test_a_manual_review_has_no_status():
    accepted(BEFORE, *proof(SUBJECT, checked_via="manual_review", http_status=None))


@pytest.mark.parametrize(
    "said",
    [
        {"http_status": 404},
        {"http_status": None},
        {"http_status": True},
        {"url": ""},
        {"checked_via": "rumour"},
    ],
)
def test_what_no_record_can_say_is_not_signed(said):
    with pytest.raises(ValueError, match="must be"):
        proof(SUBJECT, **said)


def test_a_relation_or_a_record_can_be_verified_too():
    related = accepted(BEFORE, link("r", "pluto", "sun", kind="orbits"))
    related = accepted(related, *proof(related["r"]))
    accepted(related, *proof(related["rec"], "rec-rec", "link-rec"))


def test_the_subject_may_change_afterwards():
    edited = accepted(VERIFIED, update("pluto", radius_km=1188))
    accepted(edited, link("fan", "sun", "rec", kind="likes"))
    assert check_all(edited, KEYS) == []


def test_a_record_and_its_subject_may_come_together():
    accepted(graph(), {"op": "add_object", **SUBJECT.as_json()}, *proof(SUBJECT))


def test_retiring_a_record_keeps_its_signature_whatever_became_of_the_subject():
    edited = accepted(VERIFIED, update("pluto", radius_km=1188))
    fresh = proof(edited["pluto"], "rec2", "link2", checked_at_ms=CHECKED_MS + 1)
    retired = accepted(edited, *fresh, update("rec", superseded_by="rec2"))
    assert verify(retired["rec"], KEYS)
    accepted(retired, update("rec", superseded_by=None))


def test_a_plain_verified_by_relation_is_nobodys_business():
    accepted(BEFORE, link("r", "pluto", "sun"), link("r2", "pluto", "sun", "pluto"))


# ---- moved, altered, aged, unlinked, re-linked, hand-made


def test_moved_to_another_subject():
    relink = update("link", participants=["sun", "rec"])
    assert UNVERIFIED_PROVENANCE in refused(VERIFIED, update("rec", subject_id="sun"), relink)
    moved = {"subject_id": "sun", "subject_hash": BEFORE["sun"].hash.hex()}
    assert UNVERIFIED_PROVENANCE in refused(VERIFIED, update("rec", **moved), relink)


@pytest.mark.parametrize(
    "field", [*sorted(RECORD.structure.keys() - {"superseded_by"}), "note", "valid_until", "archived"]
)
@pytest.mark.parametrize("value", [None, "x", 1, "2026-06-01T00:00:00Z"])
def test_altered_in_any_field(field, value):
    if field in RECORD.structure or value is not None:
        assert UNVERIFIED_PROVENANCE in refused(VERIFIED, update("rec", **{field: value}))


def test_aged_or_made_younger():
    for text in ("2025-01-01T00:00:00Z", "2026-11-01T00:00:00Z", "2026-01-01T00:00:00.000Z"):
        assert refused(VERIFIED, update("rec", checked_at=text)) == [UNVERIFIED_PROVENANCE]


def test_renamed():
    renamed = {"op": "rename_object", "object_id": "rec", "new_name": "Proof that Pluto is a planet"}
    assert refused(VERIFIED, renamed) == [UNVERIFIED_PROVENANCE]


def test_signature_of_another_spelling():
    signature = str(RECORD.structure["signature"])
    for other in (signature.upper(), signature + "0", signature[:-1], " " + signature, "é" * 64, [signature]):
        assert refused(VERIFIED, update("rec", signature=other)) == [UNVERIFIED_PROVENANCE]


def test_unlinked():
    assert refused(VERIFIED, {"op": "remove_relation", "relation_id": "link"}) == [VERIFICATION_RECORD]
    assert refused(VERIFIED, update("link", relation_type="mentions")) == [VERIFICATION_RECORD]
    assert refused(BEFORE, proof(SUBJECT)[0]) == [VERIFICATION_RECORD]


@pytest.mark.parametrize(
    "ends",
    [
        ["sun", "rec"],
        ["rec", "pluto"],
        ["pluto", "rec", "sun"],
        ["pluto", "sun"],
        ["rec", "rec"],
        ["pluto", "pluto"],
    ],
)
def test_relinked(ends):
    assert refused(VERIFIED, update("link", participants=ends)) == [VERIFICATION_RECORD]


def test_a_second_link():
    for ends in (["pluto", "rec"], ["sun", "rec"], ["rec", "sun"]):
        assert refused(VERIFIED, link("link2", *ends)) == [VERIFICATION_RECORD]


def test_copied_to_another_id():
    assert refused(VERIFIED, record_copy("copy"), link("l2", "pluto", "copy")) == [UNVERIFIED_PROVENANCE]


def test_hand_made():
    for changes in ({"signature": "0" * 64}, {"signature": None}, {"key_id": "nope"}, {"key_id": None}):
        made = record_copy("mine", **changes)
        assert refused(BEFORE, made, link("l", "pluto", "mine")) == [UNVERIFIED_PROVENANCE]
    empty = {"op": "add_object", "identity": {"id": "mine", "type": "VerificationRecord", "name": "N"}}
    assert set(refused(BEFORE, empty)) == {UNVERIFIED_PROVENANCE, VERIFICATION_RECORD}


def test_signed_with_a_foreign_key():
    assert refused(BEFORE, *proof(SUBJECT, keys=FOREIGN)) == [UNVERIFIED_PROVENANCE]
    _, found = evolve(BEFORE, *proof(SUBJECT, keys=FOREIGN))
    assert "unknown key" in found[0].message and "verify the source" in found[0].message


def test_a_foreign_key_under_our_key_id():
    posing = Keyring(KEYS.primary_id, {KEYS.primary_id: FOREIGN.keys[FOREIGN.primary_id]})
    assert refused(BEFORE, *proof(SUBJECT, keys=posing)) == [UNVERIFIED_PROVENANCE]


def test_made_for_the_subject_as_it_was():
    edited = accepted(BEFORE, update("pluto", radius_km=1))
    assert refused(edited, *proof(SUBJECT)) == [VERIFICATION_RECORD]
    assert refused(BEFORE, *proof(SUBJECT), update("pluto", radius_km=1)) == [VERIFICATION_RECORD]
    assert refused(
        BEFORE, *proof(SUBJECT), {"op": "rename_object", "object_id": "pluto", "new_name": "X"}
    ) == [VERIFICATION_RECORD]


def test_a_removed_record_does_not_return_for_a_changed_subject():
    removed = accepted(VERIFIED, {"op": "remove_object", "object_id": "rec"}, update("pluto", radius_km=1))
    assert refused(removed, record_copy("rec"), link("link", "pluto", "rec")) == [VERIFICATION_RECORD]
    taken = {"signature": RECORD.structure["signature"]}
    assert UNVERIFIED_PROVENANCE in refused(
        removed,
        record_copy("rec", subject_hash=removed["pluto"].hash.hex(), **taken),
        link("link", "pluto", "rec"),
    )


def test_a_record_that_any_parent_has_is_history():
    edited = accepted(BEFORE, update("pluto", radius_km=1))
    merged = edited.with_changes({"rec": RECORD, "link": VERIFIED["link"]})
    assert check_change([edited, VERIFIED], merged, ["rec", "link"], KEYS) == []
    assert codes(check_change([edited], merged, ["rec", "link"], KEYS)) == [VERIFICATION_RECORD]


def test_retired_by_what_is_no_record_of_the_subject():
    other = accepted(VERIFIED, *proof(BEFORE["sun"], "sunrec", "sunlink"))
    for target in ("sunrec", "pluto", "nope", "rec", "", 3, False):
        assert refused(other, update("rec", superseded_by=target)) == [VERIFICATION_RECORD]
    two = accepted(VERIFIED, *proof(SUBJECT, "rec2", "link2"))
    circle = (update("rec", superseded_by="rec2"), update("rec2", superseded_by="rec"))
    assert refused(two, *circle) == [VERIFICATION_RECORD]
    retired = accepted(two, circle[0])
    assert refused(retired, circle[1]) == [VERIFICATION_RECORD]
    assert refused(retired, {"op": "remove_object", "object_id": "rec2"}) == [VERIFICATION_RECORD]


def test_disguised_as_another_type_and_back():
    plain = thing("rec", "Note", **RECORD.structure)
    hidden = VERIFIED.with_changes({"rec": plain, "pluto": thing("pluto", "Body", radius_km=1)})
    assert check_change([VERIFIED], hidden, ["rec", "pluto"], KEYS) == []
    back = hidden.with_changes({"rec": RECORD})
    assert codes(check_change([hidden], back, ["rec"], KEYS)) == [VERIFICATION_RECORD]


def test_a_subject_that_stops_being_verified_breaks_the_record_of_the_record():
    """The link of a record's own record counts only while that one is a record of it."""
    double = accepted(VERIFIED, *proof(RECORD, "rec-rec", "link-rec"))
    unmade = double.with_changes({"rec-rec": thing("rec-rec")})
    assert check_change([double], unmade, ["rec-rec"], KEYS) == check_all(unmade, KEYS)
    assert codes(check_all(unmade, KEYS)) == [VERIFICATION_RECORD]


def test_the_subject_goes_by_a_path_without_cascade():
    gone = VERIFIED.with_changes({"pluto": None})
    assert set(codes(check_change([VERIFIED], gone, ["pluto"], KEYS))) == {
        "CKS-STRUCT-DANGLING-REF",
        VERIFICATION_RECORD,
    }


def test_a_record_is_its_own_subject():
    fields = {**RECORD.structure, "subject_id": "self"}
    fields.pop("signature"), fields.pop("key_id")
    named = {"id": "self", "type": "VerificationRecord", "name": "N"}
    made = {"op": "add_object", "identity": named, "structure": sign("self", "N", fields, KEYS)}
    assert set(refused(BEFORE, made, link("l", "self", "self"))) == {VERIFICATION_RECORD}


def test_steps_and_records_do_not_supersede_each_other():
    mixed = accepted(VERIFIED.with_changes({"s": step("s", "pluto")}), link("x", "s", "rec", kind="cites"))
    assert refused(mixed, update("rec", superseded_by="s")) == [VERIFICATION_RECORD]
    assert refused(mixed, update("s", superseded_by="rec")) == ["CKS-EXT-SUPERSESSION-CHAIN"]


def test_long_ids_fit_the_name():
    long = thing("x" * 512)
    added, joined = record_operations("r", "l", long, "u", "u", 200, CHECKED_MS, "automated_http_check", KEYS)
    accepted(graph(long), added, joined)
    assert relation("l", "x" * 512, "r", kind="verified_by").structure == {
        "participants": joined["participants"],
        "relation_type": joined["relation_type"],
    }
