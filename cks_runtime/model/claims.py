"""What a conflict claims: hashes made only of what every replica sees alike, so that finding it twice costs nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cks_runtime.model.canon import Hash, Json, content_id
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.graph import Graph
from cks_runtime.model.inference import affected, confidence_conflicts, stale_premises
from cks_runtime.model.knowledge import KObject

CONCLUSION = "conclusion:"
STEP = "step:"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a rule found: `anchor` is where in the graph it can change, `essence` what identifies it.

    Two findings with equal essence in one session are the same claim; `diagnostic` may differ between them.
    """

    kind: str
    anchor: str
    essence: Json
    diagnostic: Mapping[str, Json]
    object_ids: tuple[str, ...]

    def claim(self, session_id: str) -> Hash:
        """The claim's name in a session."""
        return content_id([self.kind, session_id, self.essence])

    def body(self) -> dict[str, Json]:
        """Stored form: the diagnostic and the objects it is about."""
        return {"diagnostic": dict(self.diagnostic), "object_ids": list(self.object_ids)}


def record_id(claims: Iterable[Hash]) -> str:
    """A record's id: the hash of its sorted claims."""
    names: list[Json] = [*sorted(claim.hex() for claim in claims)]
    return content_id(names).hex()


def confidence_finding(graph: Graph, found: Diagnostic) -> Finding:
    """A disagreement: the code and the steps with their confidence."""
    steps = [str(step) for step in _list(found.extra["step_ids"])]
    pairs: list[Json] = [[step, graph[step].structure.get("confidence")] for step in sorted(steps)]
    conclusion = str(found.extra["conclusion_id"])
    return Finding(
        "inference",
        CONCLUSION + conclusion,
        [found.code, conclusion, pairs],
        found.as_json(),
        (conclusion, *steps),
    )


def premise_finding(found: Diagnostic) -> Finding:
    """A replaced premise: the code, the citing step and the premise."""
    premise, step = str(found.extra["premise_id"]), found.location
    return Finding("inference", STEP + step, [found.code, step, premise], found.as_json(), (step, premise))


def inference_anchors(
    changed: Iterable[tuple[str, KObject | None, KObject | None]], after: Graph
) -> set[str]:
    """Where a change (id, before, after) can make the two rules about reasoning answer differently."""
    conclusions, steps = affected(changed, after)
    return {CONCLUSION + id for id in conclusions} | {STEP + id for id in steps}


def inference_findings(graph: Graph, anchors: Collection[str]) -> list[Finding]:
    """What the two rules about reasoning find at these places."""
    conclusions = [anchor.removeprefix(CONCLUSION) for anchor in anchors if anchor.startswith(CONCLUSION)]
    steps = [anchor.removeprefix(STEP) for anchor in anchors if anchor.startswith(STEP)]
    return [
        *(confidence_finding(graph, found) for found in confidence_conflicts(graph, conclusions)),
        *(premise_finding(found) for found in stale_premises(graph, steps)),
    ]


def dated_finding(kind: str, object_id: str, date: Json, found: Diagnostic) -> Finding:
    """A fact that fell due: the object and its date."""
    return Finding(kind, object_id, [object_id, date], found.as_json(), (object_id,))


def _list(value: Json) -> list[Json]:
    assert isinstance(value, list)
    return value
