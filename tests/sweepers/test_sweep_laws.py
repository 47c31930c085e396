"""Whatever is edited, branched, merged and swept in whatever order: what stands open is what a rule finds."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from conftest import START_MS, FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st
from making import evolve, patch, remove, step, thing

from cks_runtime.config import RuntimeConfig
from cks_runtime.flow.branches import MergeRefused
from cks_runtime.model.claims import Finding, inference_anchors, inference_findings
from cks_runtime.model.errors import CksError
from cks_runtime.model.graph import EMPTY_GRAPH, Graph, changes
from cks_runtime.model.times import format_ms
from cks_runtime.runtime import Runtime
from cks_runtime.store.conflicts import open_claims
from sweepers import InferenceStalenessSweeper, StalenessSweeper, TemporalStalenessSweeper

STEPS = 14
IDS = "abc"


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_open_claims_are_what_the_rules_find(seed: int) -> None:
    with TemporaryDirectory() as folder:
        anyio.run(partial(_play, Path(folder) / "cks.db", random.Random(seed)))


async def _play(path: Path, rng: random.Random) -> None:
    clock = FakeClock()
    config = RuntimeConfig(db_path=str(path), sqlite_synchronous="NORMAL", clock=clock)
    async with Runtime.open(config) as one, Runtime.open(config) as two:
        await evolve(one, "s", *(thing(id) for id in IDS))
        for _ in range(STEPS):
            rt = rng.choice((one, two))
            try:
                await _act(rt, rng, clock)
            except CksError:
                continue  # an edit that does not fit the present state: nothing was changed
        for sweeper in _sweepers(one):
            await sweeper.sweep()
        for row in await one.sessions.page(None, "", 500):
            await _check(one, row.session_id, clock())
        for sweeper in _sweepers(two):
            assert (await sweeper.sweep()).raised == 0


def _sweepers(rt: Runtime) -> list[StalenessSweeper]:
    return [InferenceStalenessSweeper(rt, 300), TemporalStalenessSweeper(rt, 300)]


async def _act(rt: Runtime, rng: random.Random, clock: FakeClock) -> None:
    rows = await rt.sessions.page(None, "", 500)
    session_id = rng.choice(rows).session_id
    match rng.randrange(10):
        case 0 | 1 | 2 | 3:
            for _ in range(rng.randrange(1, 5)):
                _, graph = await rt.sessions.head(session_id)
                await evolve(rt, session_id, _edit(rng, graph))
        case 4 | 5:
            await rng.choice(_sweepers(rt)).sweep()
        case 6:
            clock.forward(ms=rng.randrange(3000))
        case 7:
            await rt.branches.create(session_id)
        case 8:
            done = await rt.branches.merge(session_id, rng.choice(rows).session_id)
            if isinstance(done, MergeRefused):
                sides = {
                    conflict.object_id: rng.choice(("branch_a", "branch_b")) for conflict in done.conflicts
                }
                await rt.branches.merge(session_id, rng.choice(rows).session_id, resolutions=sides)
        case _:
            history = await rt.sessions.history([(await rt.sessions.get(session_id)).head], 10)
            await rt.branches.revert(session_id, rng.choice(history.versions).id.hex())


def _edit(rng: random.Random, graph: Graph) -> dict[str, Any]:
    id, steps = rng.choice(IDS), sorted(graph.of_type("InferenceStep"))
    free = sorted(set("ijklmn") - set(steps))
    match rng.randrange(7):
        case 0:
            return patch(id, valid_until=format_ms(START_MS + rng.randrange(6000)))
        case 1:
            return patch(id, note=rng.randrange(3))
        case 2 | 3 if free:
            premises = rng.sample(steps, min(len(steps), rng.randrange(3)))
            return step(rng.choice(free), id, *premises, confidence=rng.choice((0.1, 0.9)))
        case 4 | 5 if steps:
            name = rng.choice(steps)
            alike = [
                other
                for other in steps
                if graph[other].structure["conclusion"] == graph[name].structure["conclusion"]
            ]
            successor = rng.choice([None, *alike])
            return patch(name, superseded_by=successor, confidence=rng.choice((0.1, 0.9)))
        case _:
            return remove(rng.choice(steps or ["nobody"]))


async def _check(rt: Runtime, session_id: str, now_ms: int) -> None:
    row, graph = await rt.sessions.head(session_id)
    fork = await rt.sessions.graph_of(await rt.graphs.version(row.fork_version))
    inherited = fork if row.fork_session is not None else EMPTY_GRAPH
    for kind, rule in (("inference", _reasoning), ("temporal", partial(_dates, rt, now_ms))):
        expected = _claims(rule(graph), session_id) - _claims(rule(inherited), session_id)
        async with rt.store.reader() as reader:
            found = {claim.claim for claim in await open_claims(reader, kind, session_id, None)}
        assert found == expected, (session_id, kind)


def _claims(findings: list[Finding], session_id: str) -> set[bytes]:
    return {finding.claim(session_id) for finding in findings}


def _reasoning(graph: Graph) -> list[Finding]:
    return inference_findings(graph, inference_anchors(changes(EMPTY_GRAPH, graph), graph))


def _dates(rt: Runtime, now_ms: int, graph: Graph) -> list[Finding]:
    return TemporalStalenessSweeper(rt, 300).findings(graph, list(graph.ids()), now_ms)
