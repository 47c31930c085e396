"""Beliefs that disagree and premises that were replaced."""

from __future__ import annotations

from collections.abc import Collection

from cks_runtime.model.claims import Finding, confidence_finding, premise_finding
from cks_runtime.model.graph import Graph
from cks_runtime.model.inference import affected, confidence_conflicts, stale_premises
from sweepers.base import Changes, StalenessSweeper

CONCLUSION = "conclusion:"
STEP = "step:"


class InferenceStalenessSweeper(StalenessSweeper):
    """Two active steps for one conclusion with different confidence; an active step citing a superseded one."""

    name = "inference"
    kind = "inference"

    def anchors(self, changed: Changes, after: Graph) -> set[str]:
        conclusions, steps = affected(changed, after)
        return {CONCLUSION + id for id in conclusions} | {STEP + id for id in steps}

    def findings(self, graph: Graph, anchors: Collection[str], now_ms: int) -> list[Finding]:
        conclusions = [anchor.removeprefix(CONCLUSION) for anchor in anchors if anchor.startswith(CONCLUSION)]
        steps = [anchor.removeprefix(STEP) for anchor in anchors if anchor.startswith(STEP)]
        return [
            *(confidence_finding(graph, found) for found in confidence_conflicts(graph, conclusions)),
            *(premise_finding(found) for found in stale_premises(graph, steps)),
        ]
