"""Laws of the merge over random bases and edits made through the operations, and what a merge costs."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from cks_runtime.model.canon import canonical
from cks_runtime.model.diff import fields
from cks_runtime.model.errors import CksError
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.knowledge import KObject, make_object
from cks_runtime.model.merge import Conflicted, Merged, Resolution, merge
from cks_runtime.model.operations import apply_operations, replace_with
from cks_runtime.model.records import Keyring, record_operations
from cks_runtime.model.validate import check_all

KEYS = Keyring.of(b"a key of these tests")
VALUES = [0, 1, True, None, "text", [1, 2], {"k": 1}]
SWAPPED = {"branch_a": "branch_b", "branch_b": "branch_a"}

Operation = dict[str, Any]
Edit = tuple[str, int, int, int]
Edits = list[Edit]


class Editor:
    """Makes operations that fit a graph out of small numbers."""

    def __init__(self, graph: Graph, edit: Edit) -> None:
        self.graph = graph
        self.kind, *self.numbers = edit

    def any(self, index: int, *types: str) -> str:
        pool = sorted(i for i in self.graph.ids() if not types or self.graph[i].type in types)
        return pool[self.numbers[index] % len(pool)] if pool else "nobody"

    def new(self, type: str) -> dict[str, str]:
        return {"id": f"n{self.numbers[2] % 3}", "type": type, "name": type}

    def patch(self, id: str, **patch: object) -> Operation:
        return {"op": "update_object", "object_id": id, "structure_patch": patch}

    def operation(self) -> Operation:
        first, second, third = self.numbers
        step = self.any(0, "InferenceStep")
        match self.kind:
            case "field":
                return self.patch(self.any(0), **{"pqr"[second % 3]: VALUES[third % len(VALUES)]})
            case "rename":
                return {"op": "rename_object", "object_id": self.any(0), "new_name": f"name {second % 3}"}
            case "remove":
                return {"op": "remove_object", "object_id": self.any(0)}
            case "add":
                return {"op": "add_object", "identity": self.new("Concept"), "structure": {"p": first % 3}}
            case "relate":
                ends = {"participants": [self.any(0), self.any(1)], "relation_type": "knows"}
                return {"op": "add_relation", "identity": self.new("Relation"), **ends}
            case "relink":
                return self.patch(self.any(0, "Relation"), participants=[self.any(1), self.any(2)])
            case "infer":
                made = {"premises": [self.any(0)], "conclusion": self.any(1), "confidence": 0.1 * (third % 9)}
                identity = self.new("InferenceStep")
                return {"op": "record_inference", "identity": identity, "operator": "deductive", **made}
            case "confidence":
                return self.patch(step, confidence=0.1 * (second % 9))
            case "premises":
                return self.patch(step, premises=[self.any(1), self.any(2)])
            case "conclusion":
                return self.patch(step, conclusion=self.any(1))
            case "supersede":
                return self.patch(step, superseded_by=self.any(1, "InferenceStep"))
            case "revive":
                return self.patch(step, superseded_by=None)
            case "retire":
                successor = self.any(1, "VerificationRecord")
                return self.patch(self.any(0, "VerificationRecord"), superseded_by=successor)
            case _:
                return {"op": self.kind, "object_id": self.any(0), "number": second}

    def after(self) -> Graph:
        """The graph with the edit made. Raises CksError for one that cannot be."""
        operation = self.operation()
        if operation["op"] == "retype":
            obj = self.graph[operation["object_id"]]
            type = ["Concept", "Body", "InferenceStep"][operation["number"] % 3]
            return replace_with(self.graph, [make_object(obj.id, type, obj.name, obj.structure)]).graph
        if operation["op"] == "verify":
            number, url = operation["number"] % 2, "https://example.org/"
            subject = self.graph[operation["object_id"]]
            made = record_operations(
                f"v{number}", f"l{number}", subject, url, url, 200, 0, "automated_http_check", KEYS
            )
            return apply_operations(self.graph, made).graph
        return apply_operations(self.graph, [operation]).graph


KINDS = ["field", "rename", "remove", "remove", "add", "relate", "relink", "infer", "confidence", "premises"]
KINDS += ["conclusion", "supersede", "revive", "retire", "verify", "retype"]
number = st.integers(0, 11)


def edits_of(kinds: list[str]) -> st.SearchStrategy[Edits]:
    return st.lists(st.tuples(st.sampled_from(kinds), number, number, number), min_size=3, max_size=8)


edits = edits_of(KINDS)
reasoning = edits_of(["infer", "supersede", "supersede", "revive", "conclusion", "remove"])


def changed(graph: Graph, wanted: Edits) -> Graph:
    """The graph after those edits that are allowed: each has to leave it without an ERROR."""
    for edit in wanted:
        try:
            after = Editor(graph, edit).after()
        except CksError:
            continue
        if not check_all(after, KEYS):
            graph = after
    return graph


STEP = {"premises": ["a"], "conclusion": "b", "operator": "deductive", "confidence": 0.5}
START = EMPTY_GRAPH.with_changes(
    {
        **{id: make_object(id, "Concept", id, {"p": 0}) for id in "abc"},
        "d": make_object("d", "Relation", "d", {"participants": ["a", "c"], "relation_type": "knows"}),
        "e": make_object("e", "InferenceStep", "e", STEP),
        "f": make_object("f", "InferenceStep", "f", {**STEP, "confidence": 0.9}),
        "g": make_object("g", "InferenceStep", "g", {**STEP, "superseded_by": "f"}),
    }
)
bases = edits.map(lambda wanted: changed(START, wanted))


def swapped(outcome: Merged | Conflicted) -> object:
    """What of an outcome must be alike, whichever side is called ours."""
    if isinstance(outcome, Merged):
        return outcome.graph.root, outcome.dropped_relations, outcome.dropped_records, outcome.restored
    return [
        (c.object_id, c.kind, c.fields, c.bases, {c.ours, c.theirs}, c.missing, c.diagnostics)
        for c in outcome.conflicts
    ]


def encoded(obj: KObject | None) -> dict[str, bytes | None]:
    return {} if obj is None else {field: canonical(value) for field, value in fields(obj).items()}


def expect_nothing_lost(base: Graph, ours: Graph, theirs: Graph, merged: Graph) -> None:
    """Every field that one side changed, and the other did not, is in `merged` as that side has it."""
    for id in {*base.ids(), *ours.ids(), *theirs.ids()}:
        before, left, right, after = (encoded(graph.get(id)) for graph in (base, ours, theirs, merged))
        for mine, other in ((left, right), (right, left)):
            if not mine or not other:
                # An addition or a removal by one side stands; the other side left the object alone.
                assert after == (mine if other == before else other if mine == before else after)
                continue
            for field in mine.keys() | other.keys():
                if other.get(field) == before.get(field) != mine.get(field):
                    assert after.get(field) == mine.get(field), (id, field)
                if mine.get(field) == other.get(field):
                    assert after.get(field) == mine.get(field), (id, field)


@settings(max_examples=100, deadline=None)
@given(bases, edits | reasoning, edits | reasoning)
def test_a_merge_is_symmetric_idempotent_valid_and_loses_nothing(
    base: Graph, left: Edits, right: Edits
) -> None:
    ours, theirs = changed(base, left), changed(base, right)
    outcome = merge([base], ours, theirs, KEYS)
    assert swapped(outcome) == swapped(merge([base], theirs, ours, KEYS))
    if isinstance(outcome, Conflicted):
        event("conflicts: " + " ".join(sorted({c.kind for c in outcome.conflicts})))
        expect_conflicts_are_real(base, outcome)
        return
    event("merged")
    assert check_all(outcome.graph, KEYS) == []
    expect_nothing_lost(base, ours, theirs, outcome.graph)
    assert set(outcome.touched) == differing(ours, outcome.graph)
    for side in (ours, theirs):
        for known in (base, side):
            again = merge([known], outcome.graph, side, KEYS)
            assert isinstance(again, Merged)
            assert again.graph == outcome.graph
            assert again.touched == ()


def differing(a: Graph, b: Graph) -> set[str]:
    return {id for id in (*a.ids(), *b.ids()) if a.get(id) != b.get(id)}


def expect_conflicts_are_real(base: Graph, outcome: Conflicted) -> None:
    for conflict in outcome.conflicts:
        before, left, right = (
            encoded(o) for o in (base.get(conflict.object_id), conflict.ours, conflict.theirs)
        )
        match conflict.kind:
            case "edit/edit":
                assert before and left and right
                assert conflict.fields
                for field in conflict.fields:
                    assert left.get(field) != right.get(field)
            case "add/add":
                assert not before
                assert left and right and left != right
            case "remove/edit":
                assert before
                assert bool(left) != bool(right)
                assert before != (left or right)
            case "dangling":
                assert conflict.missing
                assert before not in (left, right) or left != right
            case "invalid_together":
                assert conflict.diagnostics
                assert left != right


@settings(max_examples=40, deadline=None)
@given(bases, edits, edits)
def test_one_side_alone_is_taken_as_it_is(base: Graph, left: Edits, right: Edits) -> None:
    ours = changed(base, left)
    outcome = merge([base], base, ours, KEYS)
    assert isinstance(outcome, Merged)
    assert outcome.graph == ours
    same = merge([changed(base, right)], ours, ours, KEYS)
    assert isinstance(same, Merged)
    assert same.graph == ours
    assert same.touched == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(edits, min_size=4, max_size=4), bases)
def test_a_criss_cross_does_not_depend_on_the_order_of_bases(operations: list[Edits], start: Graph) -> None:
    first, second = changed(start, operations[0]), changed(start, operations[1])
    joined = merge([start], first, second, KEYS)
    assume(isinstance(joined, Merged))
    assert isinstance(joined, Merged)
    ours, theirs = changed(joined.graph, operations[2]), changed(joined.graph, operations[3])
    outcome = merge([first, second], ours, theirs, KEYS)
    assert swapped(outcome) == swapped(merge([second, first], ours, theirs, KEYS))
    assert swapped(outcome) == swapped(merge([first, second, first], theirs, ours, KEYS))
    if isinstance(outcome, Merged):
        assert check_all(outcome.graph, KEYS) == []
        for id in ours.ids():
            if first.get(id) == second.get(id) == ours.get(id):
                assert outcome.graph.get(id) == theirs.get(id)


@settings(max_examples=100, deadline=None)
@given(bases, edits | reasoning, edits | reasoning, st.data())
def test_resolutions_settle_every_merge(base: Graph, left: Edits, right: Edits, data: st.DataObject) -> None:
    ours, theirs = changed(base, left), changed(base, right)
    given: dict[str, Resolution] = {}
    outcome = merge([base], ours, theirs, KEYS)
    for _ in range(30):
        if isinstance(outcome, Merged):
            break
        unanswered = [c.object_id for c in outcome.conflicts if c.object_id not in given]
        if not unanswered:
            event("answers that contradict each other")
            return
        id = data.draw(st.sampled_from(unanswered))
        given[id] = data.draw(st.sampled_from(["branch_a", "branch_b", None]))
        outcome = merge([base], ours, theirs, KEYS, given)
        mirrored = {id: SWAPPED[a] if isinstance(a, str) else a for id, a in given.items()}
        assert swapped(outcome) == swapped(merge([base], theirs, ours, KEYS, mirrored))  # type: ignore[arg-type]
    assert isinstance(outcome, Merged)
    event(f"resolutions: {len(given)}")
    assert check_all(outcome.graph, KEYS) == []
    assert set(outcome.touched) == differing(ours, outcome.graph)
    for id in (*outcome.dropped_relations, *outcome.dropped_records):
        assert id not in outcome.graph
    for id in outcome.restored:
        assert id in outcome.graph


@settings(max_examples=40, deadline=None)
@given(bases, edits, edits, st.sampled_from(["branch_a", "branch_b"]))
def test_naming_one_side_throughout_settles_every_merge(
    base: Graph, left: Edits, right: Edits, side: str
) -> None:
    ours, theirs = changed(base, left), changed(base, right)
    given: dict[str, Resolution] = {}
    outcome = merge([base], ours, theirs, KEYS)
    while isinstance(outcome, Conflicted):
        fresh = {c.object_id: side for c in outcome.conflicts if c.object_id not in given}
        assert fresh, outcome
        given |= fresh  # type: ignore[arg-type]
        outcome = merge([base], ours, theirs, KEYS, given)
    assert check_all(outcome.graph, KEYS) == []


# ---- cost
