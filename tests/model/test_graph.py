"""Laws of the graph: derived indexes equal fresh ones, cost follows change, damaged blobs are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cks_runtime.model import graph as graphs
from cks_runtime.model.canon import Hash, Json, canonical, digest
from cks_runtime.model.errors import DamagedBlob, ObjectNotFound
from cks_runtime.model.graph import EMPTY_GRAPH, Graph, changes, load_graph
from cks_runtime.model.knowledge import KObject, make_object
from cks_runtime.model.references import Role, references
from cks_runtime.model.trie import EMPTY_ROOT, EMPTY_TRIE, REQUEST_MAX, new_nodes

T = TypeVar("T")

ROLES: tuple[Role, ...] = ("participant", "premise", "conclusion", "superseded_by", "subject")
IDS = ["sun", "pluto", "é", "e\u0301", "\U0001f680", "\ue000", "'quoted'", " ", *(f"n{i}" for i in range(40))]


def body(id: str, **structure: Json) -> KObject:
    return make_object(id, "Body", id, structure)


def relation(id: str, *participants: str) -> KObject:
    return make_object(id, "Relation", id, {"participants": list(participants), "relation_type": "orbits"})


def step(id: str, premises: list[str], conclusion: str, superseded_by: str | None = None) -> KObject:
    structure: dict[str, Json] = {"premises": list(premises), "conclusion": conclusion}
    return make_object(id, "InferenceStep", id, {**structure, "superseded_by": superseded_by})


def graph_of(objects: Iterable[KObject]) -> Graph:
    return EMPTY_GRAPH.with_changes({obj.id: obj for obj in objects})


def planets(count: int) -> Graph:
    return graph_of(body(f"obj-{i}", radius_km=i) for i in range(count))


def blobs_of(graph: Graph) -> dict[Hash, bytes]:
    return dict(new_nodes(EMPTY_TRIE, graph.trie)) | {obj.hash: obj.blob() for obj in graph.objects()}


def run(root: Hash, blobs: Mapping[Hash, bytes], like: Graph | None = None) -> tuple[Graph, list[list[Hash]]]:
    """Load, and what was asked for."""
    asked: list[list[Hash]] = []
    loading = load_graph(root, like)
    try:
        wanted = next(loading)
        while True:
            asked.append(wanted)
            wanted = loading.send({hash: blobs[hash] for hash in wanted if hash in blobs})
    except StopIteration as stop:
        return stop.value, asked


def assert_holds(graph: Graph, model: Mapping[str, KObject]) -> None:
    """Every answer of `graph` is what the plain dict says."""
    assert graph.objects() == [model[id] for id in sorted(model)]
    assert len(graph) == len(model) and set(graph.ids()) == set(graph) == model.keys()
    assert dict(graph.trie.items()) == {id: obj.hash for id, obj in model.items()}
    assert all(graph.get(id) is model.get(id) and (id in graph) == (id in model) for id in IDS)
    counts: dict[str, int] = {}
    for obj in model.values():
        counts[obj.type] = counts.get(obj.type, 0) + 1
    assert graph.types() == counts and list(graph.types()) == sorted(counts)
    for type in (*counts, "Absent"):
        assert sorted(graph.of_type(type)) == sorted(o.id for o in model.values() if o.type == type)
    for role in ROLES:
        for target in IDS:
            expected = {obj.id for obj in model.values() if (role, target) in references(obj)}
            found = graph.referrers(role, target)
            assert set(found) == expected and len(found) == len(expected)


some = st.sampled_from(IDS)
objects_ = st.one_of(
    st.builds(body, some, x=st.integers(0, 3)),
    st.builds(relation, some, some, some),
    st.builds(relation, some, some, some, some),
    st.builds(step, some, st.lists(some, max_size=3), some, st.none() | some),
)
edits = st.lists(
    st.lists(st.one_of(objects_, some), max_size=25).map(
        lambda items: {
            (item if isinstance(item, str) else item.id): (None if isinstance(item, str) else item)
            for item in items
        }
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(edits, st.booleans())
def test_derived_equals_built_at_once(edits: list[dict[str, KObject | None]], asked_early: bool) -> None:
    graph, model = EMPTY_GRAPH, dict[str, KObject]()
    for edit in edits:
        before, model_before = graph, dict(model)
        graph = graph.with_changes(edit)
        for id, obj in edit.items():
            if obj is None:
                model.pop(id, None)
            elif id not in model or model[id] != obj:
                model[id] = obj
        if asked_early:
            assert_holds(graph, model)
            assert_holds(before, model_before)
    assert_holds(graph, model)
    assert graph == graph_of(model.values()) and graph.root == graph_of(model.values()).root
    assert hash(graph) == hash(graph_of(model.values()))


@settings(max_examples=60, deadline=None)
@given(edits, edits)
def test_changes_and_load_agree_with_plain_dicts(
    one: list[dict[str, KObject | None]], two: list[dict[str, KObject | None]]
) -> None:
    a = EMPTY_GRAPH
    for edit in one:
        a = a.with_changes(edit)
    b = a
    for edit in two:
        b = b.with_changes(edit)
    ids = sorted(id for id in set(a) | set(b) if a.get(id) != b.get(id))
    assert changes(a, b) == [(id, a.get(id), b.get(id)) for id in ids]
    loaded, _ = run(b.root, blobs_of(b), a)
    assert loaded == b
    assert_holds(loaded, {id: loaded[id] for id in b})
    assert all(loaded.get(id) is a.get(id) for id in b if a.get(id) == b.get(id))
    alone, _ = run(b.root, blobs_of(b))
    assert_holds(alone, {id: alone[id] for id in b})
    assert [obj.as_json() for obj in alone.objects()] == [obj.as_json() for obj in b.objects()]


def test_no_change_gives_the_same_graph() -> None:
    graph = graph_of([body("sun", x=1), body("pluto")])
    assert graph.with_changes({}) is graph
    assert graph.with_changes({"sun": body("sun", x=1), "absent": None}) is graph
    assert graph != graph.with_changes({"sun": None}) and graph != "sun"


def test_an_absent_object_is_named() -> None:
    with pytest.raises(ObjectNotFound, match="no object 'x'"):
        EMPTY_GRAPH["x"]
    assert EMPTY_GRAPH.get("\ud800") is None and "\ud800" not in planets(100)


def test_an_object_stands_under_its_own_id_only() -> None:
    with pytest.raises(ValueError, match="'sun' cannot stand under the id 'moon'"):
        EMPTY_GRAPH.with_changes({"moon": body("sun")})


def test_the_empty_graph() -> None:
    assert EMPTY_GRAPH.root == EMPTY_ROOT and run(EMPTY_ROOT, {}) == (EMPTY_GRAPH, [])
    assert run(EMPTY_ROOT, {}, planets(50)) == (EMPTY_GRAPH, [])
    assert not EMPTY_GRAPH.types() and not EMPTY_GRAPH.objects() and not EMPTY_GRAPH.of_type("Body")
    assert planets(50).with_changes(dict.fromkeys(planets(50))).root == EMPTY_ROOT


def test_every_role_is_found_and_the_malformed_is_passed_over() -> None:
    record = make_object("v", "VerificationRecord", "v", {"subject_id": "sun", "superseded_by": "w"})
    assert references(record) == [("subject", "sun"), ("superseded_by", "w")]
    assert references(step("s", ["a", "b", "a"], "c", "d")) == [
        ("premise", "a"),
        ("premise", "b"),
        ("conclusion", "c"),
        ("superseded_by", "d"),
    ]
    assert references(relation("r", "a", "a")) == [("participant", "a")]
    odd: dict[str, Json] = {"premises": ["a", 1, None, ["b"], {}], "conclusion": 5, "superseded_by": ["x", 2]}
    malformed = make_object("s", "InferenceStep", "s", odd)
    assert ("premise", "a") in references(malformed)
    assert all(isinstance(target, str) for _, target in references(malformed))
    assert references(make_object("b", "Body", "b", {"premises": ["a"], "conclusion": "a"})) == []


# ---- cost


def test_indexes_are_made_once_and_then_derived(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    honest: Callable[..., Any] = graphs._indexed

    def counted(*arguments: Any) -> Any:
        nonlocal made
        made += 1
        return honest(*arguments)

    monkeypatch.setattr(graphs, "_indexed", counted)
    source = planets(300)
    stored, made_before = blobs_of(source), made
    graph, _ = run(source.root, stored)
    assert made == made_before, "loading makes no index"
    for i in range(50):
        refused = graph.with_changes({"x": relation("x", "obj-1", "obj-2")})
        assert refused.referrers("participant", "obj-1") and refused.of_type("Relation")
        graph = graph.with_changes({f"r{i}": relation(f"r{i}", "obj-1", f"obj-{i}")})
        assert len(graph.referrers("participant", "obj-1")) == i + 1
        assert graph.types()["Relation"] == i + 1
    assert made == made_before + 2
    near = graph.with_changes({"obj-3": None})
    assert "obj-3" not in run(near.root, blobs_of(near), graph)[0].of_type("Body")
    assert made == made_before + 2


def test_a_change_reads_only_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = planets(5_000)
    read = 0

    def counted(obj: KObject) -> list[tuple[Role, str]]:
        nonlocal read
        read += 1
        return references(obj)

    monkeypatch.setattr(graphs, "references", counted)
    for i in range(100):
        graph = graph.with_changes({f"obj-{i}": relation(f"obj-{i}", "obj-200", "obj-201")})
    assert read == 200
    assert len(graph.referrers("participant", "obj-200")) == 100


def test_loading_beside_a_like_graph_asks_for_the_difference_only() -> None:
    base = planets(5_000)
    after = base.with_changes({"obj-1": body("obj-1", radius_km=-1), "obj-2": None, "new": body("new")})
    loaded, asked = run(after.root, blobs_of(after), base)
    wanted = {hash for page in asked for hash in page}
    objects = {after["obj-1"].hash, after["new"].hash}
    assert loaded == after and wanted == objects | dict(new_nodes(base.trie, after.trie)).keys()
    assert run(base.root, blobs_of(base), base) == (base, [])


def test_requests_are_bounded() -> None:
    graph = planets(2_000)
    loaded, asked = run(graph.root, blobs_of(graph))
    assert loaded == graph and max(map(len, asked)) == REQUEST_MAX
    assert sum(map(len, asked)) == len(blobs_of(graph))


def test_a_relation_to_a_hub_leaves_its_other_relations_alone() -> None:
    graph = planets(10).with_changes({f"r{i}": relation(f"r{i}", "obj-0", "obj-1") for i in range(10_000)})
    removed = graph.with_changes({"r5": None})
    assert len(removed.referrers("participant", "obj-0")) == 9_999
    assert len(graph.referrers("participant", "obj-0")) == 10_000


# ---- what must be refused


def test_missing_and_altered_objects_are_refused_by_name_and_the_rest_works() -> None:
    graph = planets(40)
    whole = blobs_of(graph)
    victim = graph["obj-7"]
    without = {hash: blob for hash, blob in whole.items() if hash != victim.hash}
    for blobs in (without, {**whole, victim.hash: victim.blob() + b" "}, {**whole, victim.hash: b""}):
        loaded, _ = run(graph.root, blobs)
        for ask in (lambda: loaded["obj-7"], lambda: loaded.get("obj-7"), lambda: loaded.objects()):  # noqa: B023
            with pytest.raises(DamagedBlob, match="'obj-7'") as caught:
                ask()
            assert caught.value.details == {"object_hash": victim.hash.hex(), "object_id": "obj-7"}
        assert (
            loaded == graph and len(loaded) == 40 and "obj-7" in loaded and loaded["obj-8"] == graph["obj-8"]
        )


def test_a_damaged_object_can_be_replaced_or_removed() -> None:
    graph = planets(40)
    blobs = {**blobs_of(graph), graph["obj-7"].hash: b""}
    loaded, _ = run(graph.root, blobs)
    other = loaded.with_changes({"obj-8": None})
    assert "obj-7" in other.damaged and len(other) == 39
    for repaired in (
        other.with_changes({"obj-7": body("obj-7", radius_km=5)}),
        other.with_changes({"obj-7": None}),
    ):
        assert not repaired.damaged and repaired.objects()


HOSTILE: list[Json] = [
    body("other").as_json(),
    {},
    [],
    None,
    "text",
    7,
    {"identity": None, "structure": {}},
    {"identity": {"id": "a", "name": "a"}, "structure": {}},
    {"identity": {"id": ["a"], "name": "a", "type": "Body"}, "structure": {}},
    {"identity": {"id": "a", "name": "a", "type": ["Body"]}, "structure": {}},
    {"identity": {"id": "a", "name": "a", "type": "Body"}, "structure": []},
    {"identity": {"id": "a", "name": "a", "type": "Body"}, "structure": None},
    {"identity": {"id": "a", "name": "a", "type": "Body"}},
    {"entries": {}},
]


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_a_blob_that_is_not_the_object_is_refused_by_name(value: Json) -> None:
    blob = canonical(value)
    trie = EMPTY_TRIE.update({"a": digest(blob)})
    blobs = {**dict(new_nodes(EMPTY_TRIE, trie)), digest(blob): blob}
    loaded, _ = run(trie.root, blobs)
    with pytest.raises(DamagedBlob, match="'a'") as caught:
        loaded["a"]
    assert caught.value.details["object_hash"] == digest(blob).hex()


def test_a_damaged_node_is_refused_by_name() -> None:
    graph = planets(400)
    blobs = blobs_of(graph)
    for hash, _ in new_nodes(EMPTY_TRIE, graph.trie):
        with pytest.raises(DamagedBlob) as caught:
            run(graph.root, {**blobs, hash: b"{}"})
        assert caught.value.details["node_hash"] == hash.hex()
