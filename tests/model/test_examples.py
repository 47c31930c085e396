"""The example files: valid as loaded, sources named, and facts that agree with each other."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from cks_runtime.model.canon import Json, parse_exact
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.inference import is_active, is_step
from cks_runtime.model.knowledge import KObject, dump_bytes, parse_knowledge
from cks_runtime.model.records import Keyring
from cks_runtime.model.times import parse_rfc3339
from cks_runtime.model.validate import EXTENSIONS, check_all, warnings

FOLDER = Path(__file__).parents[2] / "examples"
FILES = {"solar-system.json": 230, "checkout-oncall.json": 20}
KEYS = Keyring("test", {"test": b"k" * 32})
IN_2090_MS = parse_rfc3339("2090-01-01T00:00:00Z")


@cache
def loaded(file: str) -> Graph:
    objects = parse_knowledge(parse_exact((FOLDER / file).read_bytes()))
    assert len({obj.id for obj in objects}) == len(objects)
    return EMPTY_GRAPH.with_changes({obj.id: obj for obj in objects})


def number(obj: KObject, key: str) -> float:
    value = obj.structure[key]
    assert isinstance(value, int | float)
    return value


def relations(graph: Graph, verb: str) -> list[tuple[str, str, KObject]]:
    found = []
    for obj in graph.objects():
        if obj.is_relation and obj.structure["relation_type"] == verb:
            ends = obj.structure["participants"]
            assert isinstance(ends, list)
            found.append((str(ends[0]), str(ends[1]), obj))
    return found


def numbers_in(value: Json) -> list[int]:
    """Four-digit years at the start of a date, and plain years."""
    match value:
        case int():
            return [value]
        case str() if re.match(r"\d{4}-\d{2}-\d{2}", value):
            return [int(value[:4])]
        case _:
            return []


def test_every_file_of_the_folder_is_checked() -> None:
    assert {path.name for path in FOLDER.glob("*.json")} == set(FILES)


@pytest.mark.parametrize(("file", "least"), FILES.items())
def test_valid_as_loaded_without_a_warning_for_decades(file: str, least: int) -> None:
    graph = loaded(file)
    assert len(graph) >= least
    assert check_all(graph, KEYS) == []
    assert warnings(graph, EXTENSIONS, IN_2090_MS, 30 * 86_400_000) == []


@pytest.mark.parametrize("file", FILES)
def test_fits_one_request_and_survives_a_round_trip(file: str) -> None:
    graph = loaded(file)
    assert (FOLDER / file).stat().st_size < 1_000_000
    assert max(obj.size for obj in graph.objects()) < 20_000
    again = parse_knowledge(parse_exact(dump_bytes(graph.objects())))
    assert EMPTY_GRAPH.with_changes({obj.id: obj for obj in again}).root == graph.root


@pytest.mark.parametrize("file", FILES)
def test_every_object_names_its_source(file: str) -> None:
    missing = [obj.id for obj in loaded(file).objects() if not obj.structure.get("source")]
    assert missing == []


@pytest.mark.parametrize("file", FILES)
def test_steps_are_complete_and_active_ones_rest_on_active_ones(file: str) -> None:
    graph = loaded(file)
    steps = [obj for obj in graph.objects() if is_step(obj)]
    assert steps
    for step in steps:
        assert step.structure["justification"]
        assert isinstance(step.structure["alternatives_considered"], list)
        assert is_active(step) != bool(step.structure.get("superseded_reason"))
        premises = step.structure["premises"]
        assert isinstance(premises, list)
        cited = [graph[str(id)] for id in premises]
        if is_active(step):
            assert all(is_active(premise) for premise in cited if is_step(premise))
    assert any(not is_active(step) for step in steps)


def test_the_periods_of_the_planets_follow_kepler() -> None:
    """Within 3 %: the source gives Neptune's distance and period for different epochs."""
    graph = loaded("solar-system.json")
    planets = [
        graph[planet] for planet, kind, _ in relations(graph, "classified_as") if kind == "class-planet"
    ]
    assert len(planets) == 8
    for body in [*planets, graph["pluto"]]:
        years = number(body, "orbital_period_days") / number(graph["earth"], "orbital_period_days")
        units = number(body, "distance_from_sun_1e6_km") / number(graph["earth"], "distance_from_sun_1e6_km")
        assert years**2 == pytest.approx(units**3, rel=0.03), body.id


def test_the_moons_of_one_body_are_in_the_order_of_their_distance() -> None:
    """A check against slips of the pen: the periods as in the sources, from the innermost moon outward."""
    graph = loaded("solar-system.json")
    outward = {
        "jupiter": "metis adrastea amalthea thebe io europa ganymede callisto",
        "saturn": "pan atlas prometheus pandora janus mimas enceladus tethys dione rhea titan hyperion iapetus",
        "uranus": "cordelia ophelia bianca cressida desdemona juliet portia rosalind belinda puck "
        "miranda ariel umbriel titania oberon",
        "neptune": "naiad thalassa despina galatea larissa proteus triton nereid",
        "pluto": "charon styx nix kerberos hydra",
        "mars": "phobos deimos",
    }
    parents = {moon: parent for moon, parent, _ in relations(graph, "orbits")}
    for parent, moons in outward.items():
        assert {parents[moon] for moon in moons.split()} == {parent}
        periods = [number(graph[moon], "orbital_period_days") for moon in moons.split()]
        assert periods == sorted(periods), parent


def test_everything_that_orbits_does_so_once_and_ends_at_the_sun() -> None:
    graph = loaded("solar-system.json")
    orbits = relations(graph, "orbits")
    assert max(Counter(body for body, _, _ in orbits).values()) == 1
    parents = {body: parent for body, parent, _ in orbits}
    for start in parents:
        body = start
        for _ in range(3):
            body = parents.get(body, body)
        assert body == "sun", start


def test_years_agree_between_bodies_probes_and_lives() -> None:
    graph = loaded("solar-system.json")
    for obj in graph.objects():
        for key, value in obj.structure.items():
            if key.endswith("_date") or key == "date":
                year = obj.structure.get(key.removesuffix("date") + "year")
                assert not isinstance(year, int) or numbers_in(value) == [year], obj.id
    for target, probe, visit in relations(graph, "visited_by"):
        assert number(visit, "year") >= number(graph[probe], "launch_year"), target
    for body, finder, found in relations(graph, "discovered_by"):
        person = graph[finder].structure
        year = number(found, "year")
        assert year == graph[body].structure["discovery_year"]
        if isinstance(person.get("born"), int):
            assert number(graph[finder], "born") + 15 < year <= number(graph[finder], "died")
    for body, instrument, _ in relations(graph, "discovered_with"):
        first = number(graph[instrument], "launch_year")
        assert first <= number(graph[body], "discovery_year"), body
