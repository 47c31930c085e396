"""Laws of a merge of lines, on random texts and against git's merge as an oracle."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from merge_checking import check, parts

from cks_mcp.merging import merge3

ENDS = st.sampled_from(["\n", "\n", "\r\n"])
WORDS = st.sampled_from(
    ["a", "b", "c", "", "- a", "# a", "| a |", "```", "=======", "<<<<<<<<", "---", "k: v"]
)
ODD = st.text(st.sampled_from("ab\n\r\x0b\x0c\x1c\x85\u2028\ud800😀"), max_size=12)
AMBIGUOUS = ("inv_no_lost_insertions", "inv_ends")
"""With lines that differ in their ends only, a line can be told apart by its place alone."""


@st.composite
def unique_merges(draw: st.DrawFn) -> tuple[str, str, str]:
    """A base of different lines and two edits of it with lines of their own."""
    size = draw(st.integers(0, 25))
    end = draw(ENDS)
    base = [f"line {k}" for k in range(size)]

    def edited(name: str) -> list[str]:
        out = base[:]
        for number in range(draw(st.integers(0, 4))):
            at = draw(st.integers(0, len(out)))
            match draw(st.sampled_from(["insert", "replace", "delete"])):
                case "insert":
                    out.insert(at, f"{draw(st.sampled_from([name, 'both']))} {number}")
                case "replace":
                    out[at : at + 1] = [f"{name} {number}"]
                case _:
                    del out[at : at + draw(st.integers(1, 3))]
        return list(dict.fromkeys(out))

    def text(of: list[str]) -> str:
        joined = "".join(line + end for line in of)
        return joined[: -len(end)] if joined and draw(st.integers(0, 5)) == 0 else joined

    return text(base), text(edited("ours")), text(edited("theirs"))


@st.composite
def repeating_merges(draw: st.DrawFn) -> tuple[str, str, str]:
    """Three texts of few different lines, some of which mean something to Markdown or look like markers."""
    end = draw(ENDS)
    base, ours, theirs = (draw(st.lists(WORDS, max_size=14)) for _ in range(3))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(base)))
        ours, theirs = base[:at] + ours[:2] + base[at:], base[: at // 2] + base[at // 2 + 1 :] + theirs[:1]
    return tuple("".join(line + end for line in lines) for lines in (base, ours, theirs))  # type: ignore[return-value]


@settings(max_examples=120, deadline=None)
@given(unique_merges())
def test_edits_of_different_lines_lose_and_invent_nothing(texts: tuple[str, str, str]) -> None:
    skip = () if all(text.endswith("\n") for text in texts) else ("inv_ends",)
    check(*texts, skip)


@settings(max_examples=120, deadline=None)
@given(repeating_merges())
def test_equal_lines_at_many_places_lose_and_invent_nothing(texts: tuple[str, str, str]) -> None:
    check(*texts)


@settings(max_examples=100, deadline=None)
@given(ODD, ODD, ODD)
def test_odd_characters_are_content(base: str, ours: str, theirs: str) -> None:
    check(base, ours, theirs, (*AMBIGUOUS, "inv_kept_lines_kept"))


@settings(max_examples=120, deadline=None)
@given(st.one_of(unique_merges(), repeating_merges()))
def test_swapping_the_sides_swaps_the_answer(texts: tuple[str, str, str]) -> None:
    base, ours, theirs = texts
    one, two = merge3(base, ours, theirs), merge3(base, theirs, ours)
    assert parts(one) == [part if isinstance(part, str) else part[::-1] for part in parts(two)]


@settings(max_examples=120, deadline=None)
@given(st.one_of(unique_merges(), repeating_merges(), st.tuples(ODD, ODD, ODD)))
def test_a_side_without_edits_leaves_the_other(texts: tuple[str, str, str]) -> None:
    base, ours, theirs = texts
    for candidate, want in (
        (merge3(base, ours, base), ours),
        (merge3(base, base, theirs), theirs),
        (merge3(base, ours, ours), ours),
        (merge3(base, base, base), base),
    ):
        assert (candidate.body, candidate.has_markers) == (want, False)


def test_what_git_merges_without_conflict_comes_out_alike(tmp_path: Path) -> None:
    seeds = random.Random(5)
    agreed = 0
    for _ in range(60):
        base = [f"line {k}\n" for k in range(seeds.randrange(3, 30))]
        sides = []
        for name in ("ours", "theirs"):
            lines = base[:]
            for number in range(seeds.randrange(1, 4)):
                at = seeds.randrange(len(lines) + 1)
                lines[at : at + seeds.randrange(3)] = [f"{name} {number}\n"] * seeds.randrange(2)
            sides.append("".join(lines))
        files = [tmp_path / name for name in ("ours", "base", "theirs")]
        for file, text in zip(files, (sides[0], "".join(base), sides[1]), strict=True):
            file.write_text(text)
        run = subprocess.run(["git", "merge-file", "-p", *files], capture_output=True, check=False, text=True)
        if run.returncode == 0:
            agreed += 1
            candidate = check("".join(base), *sides)
            assert (candidate.body, candidate.has_markers) == (run.stdout, False)
    assert agreed > 10
