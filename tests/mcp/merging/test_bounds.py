"""Time and memory on texts with no structure to hold on to: bounds with room to spare for a busy machine."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterable

import pytest
from merge_checking import parts

from cks_mcp.merging import merge3, scene

Texts = tuple[list[str], list[str], list[str]]
SIZE = 20_000
LIMIT_S = 4.0


def _shuffled(lines: list[str], seed: int) -> list[str]:
    mixed = lines[:]
    random.Random(seed).shuffle(mixed)
    return mixed


def _edited(lines: list[str], seed: int, share: float) -> list[str]:
    seeds = random.Random(seed)
    return [
        f"edit {seed}" if seeds.random() < share else line for line in lines if seeds.random() > share / 3
    ]


def _all_equal() -> Texts:
    lines = ["x"] * SIZE
    return lines, ["A", *lines, *["x"] * 200], [*lines[400:], "B"]


def _nothing_in_common() -> Texts:
    return tuple([f"{name}{k}" for k in range(SIZE)] for name in "bot")  # type: ignore[return-value]


def _periodic() -> Texts:
    lines = [f"p{k % 7}" for k in range(SIZE)]
    return lines, _edited(lines, 1, 0.05), [*lines[3:], "q"]


def _shuffles() -> Texts:
    lines = [f"line {k}" for k in range(SIZE)]
    return lines, _shuffled(lines, 1), _shuffled(lines, 2)


def _shuffled_repeats() -> Texts:
    lines = [f"line {k % 40}" for k in range(SIZE)]
    return lines, _shuffled(lines, 1), _shuffled(lines, 2)


def _reversed() -> Texts:
    lines = [f"line {k}" for k in range(SIZE)]
    return lines, lines[::-1], _edited(lines, 3, 0.02)


def _two_letters() -> Texts:
    seeds = random.Random(4)
    return tuple([seeds.choice("ab") for _ in range(SIZE)] for _ in range(3))  # type: ignore[return-value]


def _every_line_twice() -> Texts:
    lines = [f"line {k}" for k in range(SIZE)]
    return lines, [x for line in lines for x in (line, "o")], [x for line in lines for x in ("t", line)]


def _bullets_reversed() -> Texts:
    lines = [f"- item {k}" for k in range(SIZE)]
    return lines, lines[::-1], _shuffled(lines, 6)


PATHOLOGICAL = [
    _all_equal,
    _nothing_in_common,
    _periodic,
    _shuffles,
    _shuffled_repeats,
    _reversed,
    _two_letters,
    _every_line_twice,
    _bullets_reversed,
]


@pytest.mark.parametrize("make", PATHOLOGICAL)
def test_texts_without_structure_take_bounded_time(make: Callable[[], Texts]) -> None:
    base, ours, theirs = ("".join(line + "\n" for line in lines) for lines in make())
    began = time.process_time()
    candidate = merge3(base, ours, theirs)
    assert time.process_time() - began < LIMIT_S
    parts(candidate)
    assert len(candidate.warnings) <= 40


def test_one_byte_lines_take_memory_in_proportion() -> None:
    seeds = random.Random(9)
    base = [seeds.choice("abcd") for _ in range(1 << 15)]
    sides = [["X" if seeds.random() < 0.02 else line for line in base] for _ in range(2)]
    texts = ["".join(line + "\n" for line in lines) for lines in (base, *sides)]
    tracemalloc.start()
    merge3(*texts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200 * (1 << 20) / 16  # 200 MiB for 1 MiB of them


def test_markers_stay_short_where_the_text_has_very_long_runs() -> None:
    runs = "".join("=" * length + "\n" for length in (7, 8, 9, 5_000))
    candidate = merge3("a\n" + runs, "b\n" + runs, "c\n" + runs)
    assert candidate.marker_width == 10
    parts(candidate)


def test_thousands_of_conflicts_in_one_stretch_read_its_base_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of the whole stretch for each of its conflicts made 160 KB take most of a minute."""
    made = 0

    class Counted(frozenset[str]):
        def __new__(cls, lines: Iterable[str] = ()) -> Counted:
            nonlocal made
            made += 1
            return super().__new__(cls, lines)

    monkeypatch.setattr(scene, "frozenset", Counted, raising=False)
    base, ours, theirs = (
        "".join(f"{n}\na\nb\n{end}" for n in range(2_000)) for end in ("x\n", "z\na\n", "z\nb\n")
    )
    assert len(merge3(base, ours, theirs).conflicts) == 2_000
    assert made < 50
