"""Contradictions by declared rules: relation types that exclude each other or allow one target only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from cks_runtime.model.canon import Json
from cks_runtime.model.diagnostics import (
    FORMAT,
    FUNCTIONAL_RELATION,
    MUTUAL_EXCLUSION,
    Diagnostic,
    broken,
    in_order,
    quoted,
    warning,
)
from cks_runtime.model.graph import Graph
from cks_runtime.model.knowledge import KObject

EXCLUSION_TYPE: Final = "MutualExclusionRule"
FUNCTIONAL_TYPE: Final = "FunctionalRelationRule"

_KEYS: Final = {
    EXCLUSION_TYPE: ("relation_type_a", "relation_type_b"),
    FUNCTIONAL_TYPE: ("relation_type",),
}
_Pair = tuple[str, ...]


def check_rule(rule: KObject) -> Iterator[Diagnostic]:
    """ERRORs of a rule's own form; nothing for an object that is no rule."""
    keys = _KEYS.get(rule.type, ())
    strange = [key for key in keys if not _is_text(rule.structure.get(key))]
    for key in strange:
        given = quoted(rule.structure.get(key))
        message = (
            f"{rule.type} {quoted(rule.id)}: {key!r} must be a relation type (a non-empty text), is {given}"
        )
        yield broken(FORMAT, rule.id, message)
    if rule.type == EXCLUSION_TYPE and not strange and len({rule.structure[key] for key in keys}) < 2:
        message = (
            f"{rule.type} {quoted(rule.id)}: 'relation_type_a' and 'relation_type_b' must differ, "
            f"both are {quoted(rule.structure['relation_type_a'])}"
        )
        yield broken(FORMAT, rule.id, message)


def contradictions(graph: Graph, scope: Iterable[str] | None = None) -> list[Diagnostic]:
    """A WARNING for each place where a rule is broken: a source with two targets, a pair with both relations.

    A relation's source is its first participant, its target the rest, so pairs are ordered. With `scope` only
    what relations or rules of these ids take part in; the cost then follows the relations of their sources.
    """
    rules = [graph[id] for kind in _KEYS for id in graph.of_type(kind)]
    rules = [rule for rule in rules if not any(check_rule(rule))]
    if not rules:
        return []
    if scope is None:
        return _by_rules(rules, _Table(graph, graph.ids()))
    chosen = {obj.id: obj for id in scope if (obj := graph.get(id)) is not None}
    whole = [rule for rule in rules if rule.id in chosen]
    found = _by_rules(whole, _Table(graph, graph.ids())) if whole else []
    sources = {relation[0] for obj in chosen.values() if (relation := _ends(obj)) is not None}
    nearby = {id for source in sources for id in graph.referrers("participant", source)}
    near = _by_rules([rule for rule in rules if rule.id not in chosen], _Table(graph, nearby))
    return in_order([*found, *(d for d in near if not chosen.keys().isdisjoint(_relation_ids(d)))])


def _by_rules(rules: list[KObject], table: _Table) -> list[Diagnostic]:
    return in_order(
        d for rule in rules for d in (_exclusive if rule.type == EXCLUSION_TYPE else _functional)(rule, table)
    )


class _Table:
    """Relations by type, then by ordered pair of source and target."""

    def __init__(self, graph: Graph, ids: Iterable[str]) -> None:
        self.by_type: dict[str, dict[_Pair, list[str]]] = {}
        for id in sorted(ids):
            obj = graph.readable(id)
            if obj is not None and (pair := _ends(obj)) is not None:
                kind = str(obj.structure["relation_type"])
                self.by_type.setdefault(kind, {}).setdefault(pair, []).append(id)


def _exclusive(rule: KObject, table: _Table) -> Iterator[Diagnostic]:
    kind_a, kind_b = str(rule.structure["relation_type_a"]), str(rule.structure["relation_type_b"])
    of_a, of_b = table.by_type.get(kind_a, {}), table.by_type.get(kind_b, {})
    for pair in of_a.keys() & of_b.keys():
        ids = sorted(of_a[pair] + of_b[pair])
        message = (
            f"the pair ({', '.join(quoted(end) for end in pair)}) has both {quoted(kind_a)} and "
            f"{quoted(kind_b)}, which rule '{rule.id}' excludes: relations {ids}."
        )
        yield _contradiction(MUTUAL_EXCLUSION, message, rule, ids)


def _functional(rule: KObject, table: _Table) -> Iterator[Diagnostic]:
    kind = str(rule.structure["relation_type"])
    by_source: dict[str, list[_Pair]] = {}
    for pair in table.by_type.get(kind, {}):
        by_source.setdefault(pair[0], []).append(pair)
    for source, pairs in by_source.items():
        if len(pairs) < 2:
            continue
        ids = sorted(id for pair in pairs for id in table.by_type[kind][pair])
        message = (
            f"'{source}' has {len(pairs)} targets by {quoted(kind)}, "
            f"of which rule '{rule.id}' allows one: relations {ids}."
        )
        yield _contradiction(FUNCTIONAL_RELATION, message, rule, ids)


def _contradiction(code: str, message: str, rule: KObject, ids: list[str]) -> Diagnostic:
    relation_ids: list[Json] = [*ids]
    return warning(code, ids[0], message, relation_ids=relation_ids, rule_id=rule.id)


def _relation_ids(found: Diagnostic) -> list[str]:
    ids = found.extra["relation_ids"]
    return [str(id) for id in ids] if isinstance(ids, list) else []


def _ends(obj: KObject) -> _Pair | None:
    """(source, target …) of a well-formed relation, else None."""
    ends, kind = obj.structure.get("participants"), obj.structure.get("relation_type")
    if not isinstance(ends, list) or len(ends) < 2 or not _is_text(kind):
        return None
    return tuple(str(end) for end in ends)


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and value != ""
