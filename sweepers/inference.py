"""Beliefs that disagree and premises that were replaced."""

from __future__ import annotations

from collections.abc import Collection

from cks_runtime.model.claims import Finding, inference_anchors, inference_findings
from cks_runtime.model.graph import Graph
from sweepers.base import Changes, StalenessSweeper


class InferenceStalenessSweeper(StalenessSweeper):
    """Two active steps for one conclusion with different confidence; an active step citing a superseded one."""

    name = "inference"
    kind = "inference"

    def anchors(self, changed: Changes, after: Graph) -> set[str]:
        return inference_anchors(changed, after)

    def findings(self, graph: Graph, anchors: Collection[str], now_ms: int) -> list[Finding]:
        return inference_findings(graph, anchors)
