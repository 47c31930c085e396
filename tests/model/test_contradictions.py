"""Declared rules about relations: what contradicts them, what a scope sees, and what makes a rule."""

from __future__ import annotations

import pytest
from building import KEYS, graph, relation, thing

from cks_runtime.model.knowledge import KObject
from cks_runtime.model.validate import check_all, warnings


def exclusion(id: str = "rule", a: object = "loves", b: object = "hates") -> KObject:
    return thing(id, "MutualExclusionRule", relation_type_a=a, relation_type_b=b)


def functional(id: str = "rule", kind: object = "capital") -> KObject:
    return thing(id, "FunctionalRelationRule", relation_type=kind)


def contradicted(*objects: KObject, scope=None):
    return warnings(graph(thing("x"), thing("y"), thing("z"), *objects), ["contradiction"], 0, 0, scope)


def test_both_relations_between_one_ordered_pair():
    pair = [relation("r2", "x", "y", kind="loves"), relation("r1", "x", "y", kind="hates")]
    (found,) = contradicted(exclusion(), *pair, relation("r0", "x", "y", kind="loves"))
    assert (found.code, found.severity, found.location) == ("CKS-EXT-MUTUAL-EXCLUSION", "WARNING", "r0")
    assert found.extra == {"relation_ids": ["r0", "r1", "r2"], "rule_id": "rule"}
    back = [relation("r1", "x", "y", kind="loves"), relation("r2", "y", "x", kind="hates")]
    assert contradicted(exclusion(), *back) == []
    assert contradicted(exclusion(b="fears"), *pair) == []


def test_one_source_with_two_targets():
    two = [relation("r2", "x", "y", kind="capital"), relation("r1", "x", "z", kind="capital")]
    (found,) = contradicted(functional(), *two)
    assert (found.code, found.severity, found.location) == ("CKS-EXT-FUNCTIONAL-RELATION", "WARNING", "r1")
    assert found.extra == {"relation_ids": ["r1", "r2"], "rule_id": "rule"}
    same = [relation("r2", "x", "y", kind="capital"), relation("r1", "x", "y", kind="capital")]
    assert contradicted(functional(), *same) == []
    assert (
        contradicted(
            functional(), relation("r1", "x", "y", kind="capital"), relation("r2", "z", "y", kind="capital")
        )
        == []
    )


def test_a_scope_sees_what_its_objects_take_part_in():
    objects = [
        functional("f"),
        exclusion("m"),
        relation("c1", "x", "y", kind="capital"),
        relation("c2", "x", "z", kind="capital"),
        relation("l", "y", "z", kind="loves"),
        relation("h", "y", "z", kind="hates"),
    ]
    assert [d.location for d in contradicted(*objects)] == ["c1", "h"]
    for id, places in {"c2": ["c1"], "l": ["h"], "f": ["c1"], "m": ["h"], "x": [], "nope": []}.items():
        assert [d.location for d in contradicted(*objects, scope=[id])] == places
    assert contradicted(*objects, scope=["f", "l", "c1"]) == contradicted(*objects)
    beside = relation("n", "y", "x", kind="near")
    assert contradicted(*objects, beside, scope=["n"]) == []


@pytest.mark.parametrize(
    "rule",
    [
        exclusion(a=None),
        exclusion(b=""),
        exclusion(a=["loves"]),
        exclusion(a="hates"),
        thing("rule", "MutualExclusionRule"),
        thing("rule", "FunctionalRelationRule"),
    ],
)
def test_a_malformed_rule_is_an_error_and_judges_nothing(rule):
    found = check_all(graph(rule), KEYS)
    assert {(d.code, d.severity, d.location) for d in found} == {("CKS-STRUCT-FORMAT", "ERROR", "rule")}
    assert (
        contradicted(rule, relation("r", "x", "y", kind="hates"), relation("q", "x", "z", kind="hates")) == []
    )


def test_good_rules_are_accepted():
    assert check_all(graph(exclusion("m"), functional("f")), KEYS) == []
