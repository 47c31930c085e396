"""What operations refuse and in which words, and that no other input does anything else."""

from __future__ import annotations

import pytest
from building import evolve, graph, identity, op, relation, step, thing
from hypothesis import given
from hypothesis import strategies as st

from cks_runtime.model.errors import CksError, InvalidKnowledge, InvalidParameter, ObjectNotFound, TooLarge
from cks_runtime.model.graph import EMPTY_GRAPH
from cks_runtime.model.knowledge import Limits
from cks_runtime.model.operations import OPERATIONS, apply_operations, replace_with


def test_ids_are_unique():
    with pytest.raises(InvalidKnowledge) as refused:
        apply_operations(graph(thing("a")), [op("add_object", identity=identity("a"))])
    assert refused.value.details["diagnostics"][0]["code"] == "CKS-STRUCT-UNIQUE-IDENTITY"
    assert "operations[0]" in refused.value.message


def test_an_object_removed_by_the_same_list_is_said_to_be():
    before = graph(thing("a"), thing("b"), relation("r", "a", "b"))
    doubled = [op("remove_object", object_id="a"), op("remove_relation", relation_id="r")]
    with pytest.raises(ObjectNotFound, match=r"operations\[1\]\.relation_id.*'r'.*earlier operation"):
        apply_operations(before, doubled)


def test_remove_relation_wants_a_relation():
    with pytest.raises(InvalidParameter, match="not a relation"):
        apply_operations(graph(thing("a")), [op("remove_relation", relation_id="a")])


ANY = {
    "add_object": {"identity": identity("n")},
    "update_object": {"object_id": "a", "structure_patch": {}},
    "rename_object": {"object_id": "a", "new_name": "N"},
    "remove_object": {"object_id": "a"},
    "add_relation": {"identity": identity("n"), "participants": ["a", "b"], "relation_type": "t"},
    "remove_relation": {"relation_id": "r"},
    "record_inference": {
        "identity": identity("n", "InferenceStep"),
        "premises": ["a"],
        "conclusion": "b",
        "operator": "deductive",
        "confidence": 0.5,
    },
    "resolve_inference_conflict": {"conclusion_id": "b", "winner_id": "s"},
}
POPULATED = graph(
    thing("a"), thing("b"), relation("r", "a", "b"), step("s", "b"), step("t", "b", superseded_by="s")
)


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_works_and_names_missing_and_unknown_arguments(name):
    good = op(name, **ANY[name])
    apply_operations(POPULATED, [good])
    for argument in OPERATIONS[name][0]:
        with pytest.raises(InvalidParameter) as refused:
            apply_operations(POPULATED, [{k: v for k, v in good.items() if k != argument}])
        assert refused.value.message.startswith(f"operations[0].{argument}: is missing")
    with pytest.raises(InvalidParameter, match=f"{name} has no argument 'colour'"):
        apply_operations(POPULATED, [{**good, "colour": 1}])


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("junk", [None, True, 0, 1.5, "", [], [1], {}, {"id": 1}])
def test_arguments_of_a_wrong_type_are_named(name, junk):
    for argument in (*OPERATIONS[name][0], *OPERATIONS[name][1]):
        try:
            apply_operations(POPULATED, [op(name, **{**ANY[name], argument: junk})])
        except (InvalidParameter, ObjectNotFound) as refused:
            assert refused.details["argument"].startswith(f"operations[0].{argument}")
            assert refused.details["operation"] == 0
        except InvalidKnowledge as refused:
            assert "operations[0]" in refused.message
            assert refused.details["diagnostics"]


@pytest.mark.parametrize("operations", [None, {}, "remove_object", 3])
def test_operations_are_a_list(operations):
    with pytest.raises(InvalidParameter, match="operations"):
        apply_operations(EMPTY_GRAPH, operations)


@pytest.mark.parametrize(
    "operation", [None, [], "add_object", {}, {"op": None}, {"op": ["x"]}, {"op": "drop_table"}]
)
def test_an_unknown_operation_is_refused_with_the_list_of_known_ones(operation):
    with pytest.raises(InvalidParameter, match=r"operations\[1\]") as refused:
        apply_operations(POPULATED, [op("remove_object", object_id="a"), operation])
    if isinstance(operation, dict):
        assert all(name in refused.value.hint for name in OPERATIONS)


def test_limits_are_kept():
    small = Limits(objects=2, object_bytes=200)
    with pytest.raises(TooLarge, match="3 objects"):
        apply_operations(EMPTY_GRAPH, [op("add_object", identity=identity(i)) for i in "abc"], small)
    with pytest.raises(TooLarge):
        apply_operations(
            EMPTY_GRAPH, [op("add_object", identity=identity("a"), structure={"t": "x" * 300})], small
        )
    over = graph(thing("a"), thing("b"), thing("c"), thing("d"))
    assert len(apply_operations(over, [op("remove_object", object_id="a")], small).graph) == 3
    assert len(apply_operations(over, [op("rename_object", object_id="a", new_name="N")], small).graph) == 4
    with pytest.raises(TooLarge):
        replace_with(over, [thing("e")], small)


# ---- anything at all

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.none().map(lambda _: 10**5000)
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["a", "b", "r", "s", "t", "InferenceStep", "\ud800", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
names = st.sampled_from(sorted(OPERATIONS))


@st.composite
def near_misses(draw):
    """A good operation with a few arguments replaced by anything."""
    name = draw(names)
    bad = draw(
        st.dictionaries(
            st.sampled_from([*OPERATIONS[name][0], *OPERATIONS[name][1]]), json_values, max_size=2
        )
    )
    return op(name, **{**ANY[name], **bad})


@given(st.lists(near_misses() | json_values, max_size=5) | json_values)
def test_any_json_is_applied_or_refused_in_words(operations):
    root = POPULATED.root
    try:
        applied, found = evolve(POPULATED, *operations) if isinstance(operations, list) else (None, [])
        if applied is None:
            apply_operations(POPULATED, operations)
    except CksError as refused:
        assert refused.code in {"invalid_parameter", "invalid_knowledge", "object_not_found", "too_large"}
        assert len(refused.message.encode()) < 3000
    else:
        assert all(d.severity == "ERROR" and d.message.encode() for d in found)
    assert POPULATED.root == root


def test_deep_nesting_is_refused():
    deep: object = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidKnowledge):
        apply_operations(EMPTY_GRAPH, [op("add_object", identity=identity("a"), structure={"deep": deep})])
