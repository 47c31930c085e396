"""Edits as data: applies a list of operations to a graph, all or nothing.

Each operation is one JSON object with its name under `op`; `OPERATIONS` lists the names with their arguments:

* `add_object`: a new object; `structure` defaults to `{}`.
* `update_object`: `mode` `merge` (default) lays `structure_patch` over the structure, key by key at the top
  level, and `null` deletes a key; `replace` makes `structure_patch` the structure.
* `rename_object`: gives an object another name; its id stays.
* `remove_object`: also removes the relations that mention the object and, where it is a subject, its
  VerificationRecords, and what mentions those in turn. A step that still cites it blocks the commit.
* `add_relation`: a new object whose structure is `structure` (default `{}`) with `participants` and
  `relation_type`.
* `remove_relation`: `remove_object` for a relation, and an error for any other object.
* `record_inference`: a new InferenceStep; `supersedes` names the active step that it takes the place of.
* `resolve_inference_conflict`: every other active step for the conclusion is superseded by the winner, with
  `reasoning` (default empty) as its `superseded_reason`.

Operations may refer to what later ones add: only the graph after the last one is judged (see `validate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cks_runtime.model.arguments import Arguments
from cks_runtime.model.canon import Json
from cks_runtime.model.diagnostics import UNIQUE_IDENTITY, error, quoted
from cks_runtime.model.draft import Draft
from cks_runtime.model.errors import InvalidKnowledge, InvalidParameter, ObjectNotFound, TooLarge
from cks_runtime.model.graph import Graph
from cks_runtime.model.inference import is_active, is_step
from cks_runtime.model.knowledge import DEFAULT_LIMITS, KObject, Limits, make_object, object_from_json
from cks_runtime.model.supersession import STEP_TYPE, chain_end

OPERATIONS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "add_object": (("identity",), ("structure",)),
    "update_object": (("object_id", "structure_patch"), ("mode",)),
    "rename_object": (("object_id", "new_name"), ()),
    "remove_object": (("object_id",), ()),
    "add_relation": (("identity", "participants", "relation_type"), ("structure",)),
    "remove_relation": (("relation_id",), ()),
    "record_inference": (
        ("identity", "premises", "conclusion", "operator", "confidence"),
        ("justification", "alternatives_considered", "supersedes"),
    ),
    "resolve_inference_conflict": (("conclusion_id", "winner_id"), ("reasoning",)),
}
"""Name → (required arguments, optional arguments)."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The graph after the operations; `touched` are the objects that differ, None being removed.

    `cascade_relations` and `cascade_records` are the ids that went with what was removed, sorted.
    """

    graph: Graph
    touched: Mapping[str, KObject | None]
    cascade_relations: tuple[str, ...] = ()
    cascade_records: tuple[str, ...] = ()


def apply_operations(graph: Graph, operations: object, limits: Limits = DEFAULT_LIMITS) -> Applied:
    """The graph after these operations, in order. `graph` is left as it is.

    Raises InvalidParameter or ObjectNotFound, naming the operation and the argument; InvalidKnowledge for an
    object that breaks the format or an id that is taken; TooLarge. References are not judged here.
    """
    if not isinstance(operations, list | tuple):
        raise InvalidParameter(
            f"operations is {quoted(operations)}; it must be a list of operations",
            'Send a list such as [{"op": "add_object", "identity": {…}, "structure": {…}}].',
            argument="operations",
        )
    draft = Draft(graph)
    for index, operation in enumerate(operations):
        _apply(draft, Arguments.of(operation, index, OPERATIONS), limits)
    return _applied(graph, draft, limits)


def replace_with(graph: Graph, objects: Iterable[KObject], limits: Limits = DEFAULT_LIMITS) -> Applied:
    """The graph with these objects added, or put in place of those with their ids. Raises TooLarge."""
    draft = Draft(graph)
    for obj in objects:
        draft.put(obj)
    return _applied(graph, draft, limits)


def _applied(graph: Graph, draft: Draft, limits: Limits) -> Applied:
    touched = draft.net()
    after = graph.with_changes(touched) if touched else graph
    if len(after) > limits.objects and len(after) > len(graph):
        raise TooLarge(
            f"the session would have {len(after)} objects; at most {limits.objects} are allowed",
            "Remove some, use another session, or raise CKS_MAX_OBJECTS.",
            objects=len(after),
            objects_max=limits.objects,
        )
    gone = sorted(draft.cascaded)
    relations = tuple(id for id in gone if draft.cascaded[id] == "relation")
    return Applied(after, touched, relations, tuple(id for id in gone if draft.cascaded[id] == "record"))


def _apply(draft: Draft, args: Arguments, limits: Limits) -> None:
    match args.op:
        case "add_object":
            value = {"identity": args.value("identity"), "structure": args.value("structure", {})}
            _add(draft, args, object_from_json(value, limits, args.where))
        case "update_object":
            _update(draft, args, limits)
        case "rename_object":
            obj = _existing(draft, args, "object_id")
            name = args.text("new_name")
            draft.put(make_object(obj.id, obj.type, name, obj.structure, limits, args.where))
        case "remove_object":
            id = args.text("object_id")
            draft.remove(id if draft.present(id) else _existing(draft, args, "object_id").id)
        case "add_relation":
            ends = {"participants": args.texts("participants"), "relation_type": args.text("relation_type")}
            value = {"identity": args.value("identity"), "structure": {**_extra(args, ends), **ends}}
            _add(draft, args, object_from_json(value, limits, args.where))
        case "remove_relation":
            obj = _existing(draft, args, "relation_id")
            if not obj.is_relation:
                raise args.wrong("relation_id", f"{quoted(obj.id)} is not a relation", "Use remove_object.")
            draft.remove(obj.id)
        case "record_inference":
            _record_inference(draft, args, limits)
        case "resolve_inference_conflict":
            _resolve(draft, args, limits)
        case _:
            raise AssertionError(f"operation {args.op} is listed but not applied")


def _existing(draft: Draft, args: Arguments, argument: str) -> KObject:
    id = args.text(argument)
    found = draft.get(id)
    if found is None:
        gone = ": an earlier operation of this list removed it" if draft.was_removed(id) else ""
        raise ObjectNotFound(
            f"{args.where}.{argument}: no object {quoted(id)}{gone}",
            "Check the id, or search for the object; operations apply in order.",
            operation=args.index,
            argument=f"{args.where}.{argument}",
            object_id=id,
        )
    return found


def _add(draft: Draft, args: Arguments, obj: KObject) -> None:
    if draft.get(obj.id) is None:
        draft.put(obj)
        return
    message = f"{args.where}: an object {quoted(obj.id)} exists already; ids are unique"
    raise InvalidKnowledge(
        message,
        "Choose another id, or change the object with update_object.",
        diagnostics=[error(UNIQUE_IDENTITY, obj.id, message).as_json()],
        operation=args.index,
    )


def _update(draft: Draft, args: Arguments, limits: Limits) -> None:
    obj = _existing(draft, args, "object_id")
    patch = args.mapping("structure_patch")
    structure = patch
    if args.choice("mode", ("merge", "replace")) == "merge":
        structure = {k: v for k, v in {**obj.structure, **patch}.items() if k not in patch or v is not None}
    draft.put(make_object(obj.id, obj.type, obj.name, structure, limits, args.where))


def _extra(args: Arguments, ends: Mapping[str, object]) -> Mapping[str, object]:
    """The further structure of a relation; one that says again what the arguments say must say the same."""
    structure = args.mapping("structure", {})
    for key, value in ends.items():
        if key in structure and structure[key] != value:
            raise args.wrong("structure", f"its {key!r} is not the {key!r} of the operation", "Leave it out.")
    return structure


def _record_inference(draft: Draft, args: Arguments, limits: Limits) -> None:
    identity = args.mapping("identity")
    if identity.get("type", STEP_TYPE) != STEP_TYPE:
        raise args.wrong("identity", f"its type must be '{STEP_TYPE}', is {quoted(identity['type'])}")
    supersedes = None if args.value("supersedes", None) is None else _existing(draft, args, "supersedes")
    if supersedes is not None and not is_active(supersedes):
        raise args.wrong("supersedes", *_not_active(draft, supersedes))
    structure: dict[str, object] = {
        "premises": args.texts("premises"),
        "conclusion": args.text("conclusion"),
        "operator": args.text("operator"),
        "confidence": args.value("confidence"),
        "justification": args.text("justification", "", empty=True),
        "alternatives_considered": args.texts("alternatives_considered", ()),
        "superseded_by": None,
    }
    value = {"identity": identity, "structure": structure}
    step = object_from_json(value, limits, args.where)
    _add(draft, args, step)
    if supersedes is not None:
        _supersede(draft, args, supersedes, {"superseded_by": step.id}, limits)


def _resolve(draft: Draft, args: Arguments, limits: Limits) -> None:
    conclusion = _existing(draft, args, "conclusion_id")
    winner = _existing(draft, args, "winner_id")
    reasoning = args.text("reasoning", "", empty=True)
    if not is_active(winner):
        raise args.wrong("winner_id", *_not_active(draft, winner))
    if winner.structure.get("conclusion") != conclusion.id:
        other = quoted(winner.structure.get("conclusion"))
        raise args.wrong("winner_id", f"{quoted(winner.id)} reaches {other}, not {quoted(conclusion.id)}")
    verdict: dict[str, Json] = {"superseded_by": winner.id, "superseded_reason": reasoning}
    for id in draft.referrers("conclusion", conclusion.id):
        step = draft.get(id)
        if step is not None and is_active(step) and step.id != winner.id:
            _supersede(draft, args, step, verdict, limits)


def _supersede(
    draft: Draft, args: Arguments, step: KObject, verdict: Mapping[str, Json], limits: Limits
) -> None:
    structure = {**step.structure, **verdict}
    draft.put(make_object(step.id, step.type, step.name, structure, limits, args.where))


def _not_active(draft: Draft, obj: KObject) -> tuple[str, str]:
    """Why this is no active step, and what to name instead."""
    if not is_step(obj):
        return f"{quoted(obj.id)} is a {quoted(obj.type)}, not an {STEP_TYPE}", f"Name an active {STEP_TYPE}."
    current = chain_end(draft, obj).id
    return f"{quoted(obj.id)} is superseded already", f"The current step is {quoted(current)}."
