"""Scheduled staleness sweepers: when, and over what, the rules of the runtime's model are checked.

The names are loaded when they are first used, so that `python -m sweepers` can be ready for a signal before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweepers.base import StalenessSweeper, SweepReport
    from sweepers.dated import DatedSweeper, ProvenanceStalenessSweeper, TemporalStalenessSweeper
    from sweepers.inference import InferenceStalenessSweeper
    from sweepers.team import SweeperTeam

_HOMES = {
    "DatedSweeper": "dated",
    "InferenceStalenessSweeper": "inference",
    "ProvenanceStalenessSweeper": "dated",
    "StalenessSweeper": "base",
    "SweepReport": "base",
    "SweeperTeam": "team",
    "TemporalStalenessSweeper": "dated",
}

__all__ = [
    "DatedSweeper",
    "InferenceStalenessSweeper",
    "ProvenanceStalenessSweeper",
    "StalenessSweeper",
    "SweepReport",
    "SweeperTeam",
    "TemporalStalenessSweeper",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
