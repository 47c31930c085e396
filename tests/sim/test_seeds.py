"""The simulator's checks over a few seeds, and over every seed that ever failed."""

from __future__ import annotations

import pytest

from tests.sim.world import Weather, World

FAILED_ONCE = (20, 12, 38)
"""Took more than ten rounds before a turn that came twice left the conversation open."""


@pytest.mark.parametrize("seed", [*FAILED_ONCE, *range(100, 106)])
def test_a_seed_holds(seed: int) -> None:
    world = World(seed, Weather.of(seed))
    world.live()
    assert world.figures.to_equal <= 20


@pytest.mark.parametrize("seed", range(3))
def test_one_writer_among_three_leaves_no_conflict_and_no_further_session(seed: int) -> None:
    calm = Weather(
        3, busy_rounds=120, loss=0.0, duplicates=0.0, partition=0.0, restart=0.0, edits=1.0, writers=1
    )
    world = World(seed, calm)
    world.live()
    assert world.figures.to_equal <= 10
    assert world.figures.conflicts == 0
    sessions = [set(replica.sessions) for replica in world.replicas.values()]
    assert sessions[0] == sessions[1] == sessions[2]
