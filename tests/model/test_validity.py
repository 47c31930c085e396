"""Ageing: dates that pass, records that are checked too long ago, and when each falls due."""

from __future__ import annotations

import pytest
from building import CHECKED_MS, KEYS, accepted, codes, graph, proof, thing
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.model.validate import check_all
from cks_runtime.model.validity import due, provenance, temporal, valid_until_ms

DAY_MS = 86_400_000


def record(**structure: object):
    parts = {"checked_at": "2026-01-01T00:00:00Z", "subject_id": "a", "url": "https://example.org/a"}
    return thing("rec", "VerificationRecord", **{**parts, **structure})


@pytest.mark.parametrize(
    "text",
    ["2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00", "2026-01-01t00:00:00.000z"],
)
def test_one_moment_in_several_spellings(text):
    assert valid_until_ms(thing("a", valid_until=text)) == CHECKED_MS
    assert due(thing("a", valid_until=text)) == [("temporal", CHECKED_MS)]


def test_without_a_date_nothing_is_due():
    for obj in (thing("a"), thing("a", valid_until=None), thing("a", checked_at="2026-01-01T00:00:00Z")):
        assert valid_until_ms(obj) is None
        assert due(obj) == []
        assert temporal(obj, 2**52) is None


def test_expired_is_strictly_before_now():
    obj = thing("pluto", valid_until="2026-01-01T00:00:00Z")
    assert temporal(obj, CHECKED_MS) is None
    found = temporal(obj, CHECKED_MS + 1)
    assert found is not None
    assert found.as_json() == {
        "code": "CKS-EXT-TEMPORAL-VALIDITY",
        "severity": "WARNING",
        "message": "'pluto' was valid until 2026-01-01T00:00:00Z: "
        "check it, then extend 'valid_until' or archive it.",
        "location": "pluto",
        "valid_until": "2026-01-01T00:00:00Z",
    }


def test_what_is_archived_does_not_expire():
    obj = thing("a", valid_until="2026-01-01T00:00:00Z", archived=True)
    assert temporal(obj, 2**52) is None
    assert due(obj) == []
    assert due(thing("a", valid_until="2026-01-01T00:00:00Z", archived="no"))


@pytest.mark.parametrize(
    "value", ["", "soon", "2026-01-01", "2026-13-01T00:00:00Z", 0, 1767225600000, True, [], {}]
)
def test_a_malformed_date_is_an_error_archived_or_not(value):
    for archived in (False, True):
        obj = thing("a", valid_until=value, archived=archived)
        (found,) = check_all(graph(obj), KEYS)
        assert (found.code, found.severity, found.location) == ("CKS-EXT-TEMPORAL-VALIDITY", "ERROR", "a")
        assert "valid_until" in found.extra
        assert (temporal(obj, 2**52), due(obj)) == (None, [])
    with pytest.raises(ValueError, match="time"):
        valid_until_ms(thing("a", valid_until=value))


def test_a_record_ages():
    ttl = 30 * DAY_MS
    assert due(record()) == [("provenance", CHECKED_MS)]
    assert provenance(record(), CHECKED_MS + ttl, ttl) is None
    found = provenance(record(), CHECKED_MS + ttl + 1, ttl)
    assert found is not None
    said = found.as_json()
    assert said.pop("message").startswith(
        "VerificationRecord 'rec' of 'a' was checked at 2026-01-01T00:00:00Z"
    )
    assert said == {
        "code": "CKS-EXT-PROVENANCE-EXPIRED",
        "severity": "WARNING",
        "location": "rec",
        "record_id": "rec",
        "subject_id": "a",
        "source_url": "https://example.org/a",
        "checked_at": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize("change", [{"superseded_by": "newer"}, {"checked_at": "x"}, {"checked_at": 5}])
def test_a_retired_or_malformed_record_is_not_due(change):
    assert due(record(**change)) == []
    assert provenance(record(**change), 2**52, 1) is None


def test_offsets_in_checked_at():
    assert due(record(checked_at="2026-01-01T05:30:00+05:30")) == [("provenance", CHECKED_MS)]


def test_a_signed_record_with_a_date_of_its_own_is_altered():
    subject = thing("a")
    before = accepted(graph(subject), *proof(subject))
    after = before.with_changes(
        {"rec": thing("rec", "VerificationRecord", **before["rec"].structure, valid_until=None)}
    )
    assert "CKS-MCP-UNVERIFIED-PROVENANCE" in codes(check_all(after, KEYS))


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
nearly = st.from_regex(
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})?"
)


@given(anything | nearly, anything | nearly, st.sampled_from([None, True, 1]), st.integers(-(2**60), 2**60))
def test_nothing_crashes_and_due_agrees_with_the_rules(date, checked, archived, now):
    obj = record(valid_until=date, checked_at=checked, archived=archived)
    when = dict(due(obj))
    assert (temporal(obj, now) is not None) == ("temporal" in when and when["temporal"] < now)
    assert (provenance(obj, now, 5) is not None) == ("provenance" in when and when["provenance"] + 5 < now)
