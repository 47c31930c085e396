"""Scheduled staleness sweepers: when, and over what, the rules of the runtime's model are checked."""

from __future__ import annotations

from sweepers.base import StalenessSweeper, SweepReport
from sweepers.dated import DatedSweeper, ProvenanceStalenessSweeper, TemporalStalenessSweeper
from sweepers.inference import InferenceStalenessSweeper
from sweepers.team import SweeperTeam

__all__ = [
    "DatedSweeper",
    "InferenceStalenessSweeper",
    "ProvenanceStalenessSweeper",
    "StalenessSweeper",
    "SweepReport",
    "SweeperTeam",
    "TemporalStalenessSweeper",
]
