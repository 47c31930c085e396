"""The comparison under the merge: true on any input, shortest on small ones, at one place for one edit."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cks_mcp.merging.diff import HUNKS_MAX, Hunk, coarser, diff, intern
from cks_mcp.merging.lines import join, split, window
from cks_mcp.merging.myers import Budget, common_pairs

LETTERS = st.lists(st.sampled_from("abcd"), max_size=40)


def hunks_of(a: list[str], b: list[str], steps: int = 400_000) -> list[Hunk]:
    """The hunks, after checking that they turn `a` into `b` and never touch."""
    in_a, in_b = intern(a, b)
    budget = Budget(len(a) + len(b))
    budget.left = steps
    hunks = diff(in_a, in_b, budget)
    built: list[str] = []
    end = -1
    for a0, a1, b0, b1 in hunks:
        assert a0 > end
        built += a[max(end, 0) : a0]
        assert len(built) == b0
        built += b[b0:b1]
        end = a1
    assert built + a[max(end, 0) :] == b
    return hunks


def longest_common(a: list[str], b: list[str]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        above = row[:]
        for k, y in enumerate(b):
            row[k + 1] = above[k] + 1 if x == y else max(above[k + 1], row[k])
    return row[-1]


@settings(max_examples=120, deadline=None)
@given(LETTERS, LETTERS)
def test_hunks_are_true(a: list[str], b: list[str]) -> None:
    hunks_of(a, b)


@settings(max_examples=100, deadline=None)
@given(LETTERS, LETTERS)
def test_myers_finds_a_longest_common_subsequence(a: list[str], b: list[str]) -> None:
    in_a, in_b = intern(a, b)
    at_a, at_b = common_pairs(in_a, [x if x >= 0 else -2 for x in in_b], Budget(100))
    assert [a[k] for k in at_a] == [b[k] for k in at_b]
    assert list(at_a) == sorted(set(at_a))
    assert list(at_b) == sorted(set(at_b))
    assert len(at_a) == longest_common(a, b)


@pytest.mark.parametrize("steps", [0, 1, 50, 2_000])
@pytest.mark.parametrize("letters", ["a", "ab", "abcdefg"])
def test_hunks_are_true_when_the_budget_ends(steps: int, letters: str) -> None:
    seeds = random.Random(steps)
    for size in (10, 300, 1_500):
        a, b = ([seeds.choice(letters) for _ in range(size)] for _ in range(2))
        hunks_of(a, b, steps)


def test_repeated_lines_are_anchored_by_blocks() -> None:
    seeds = random.Random(1)
    a = [seeds.choice("abcd") for _ in range(20_000)]
    b = a[:]
    for at in range(50, 20_000, 200):
        b[at] = "e"
    hunks = hunks_of(a, b)
    assert sum(a1 - a0 for a0, a1, _, _ in hunks) <= 2 * 100


def test_moved_lines_leave_the_longest_order_in_place() -> None:
    a = [str(k) for k in range(1_000)]
    hunks = hunks_of(a, a[700:] + a[:700])
    assert sum(a1 - a0 for a0, a1, _, _ in hunks) == 300


def test_insertions_and_deletions_slide_down() -> None:
    assert hunks_of(list("abc"), list("abbbc")) == [(2, 2, 2, 4)]
    assert hunks_of(list("abbbc"), list("abc")) == [(2, 4, 2, 2)]
    assert hunks_of(["p", "", "q"], ["p", "", "n", "", "q"]) == [(2, 2, 2, 4)]


def test_hunks_with_few_lines_between_them_can_be_taken_together() -> None:
    assert coarser([(0, 1, 0, 1), (4, 5, 4, 6), (9, 9, 10, 11)]) == [(0, 5, 0, 6), (9, 9, 10, 11)]


def test_too_many_hunks_become_coarser() -> None:
    size = HUNKS_MAX + 10
    assert len(hunks_of(["a", "b"] * size, ["a", "c"] * size)) == 1


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("ab\n\r\x85\u2028"), max_size=30))
def test_lines_are_cut_at_lf_only_and_joined_again(text: str) -> None:
    lines = split(text)
    assert join(lines) == text
    assert len(lines) == text.count("\n") + (not text.endswith("\n") and text != "")


@settings(max_examples=100, deadline=None)
@given(
    *[st.text(st.sampled_from("ab\n"), max_size=12) for _ in range(3)],
    st.integers(0, 200),
    st.integers(0, 90),
)
def test_the_window_leaves_whole_lines(a: str, b: str, c: str, before: int, after: int) -> None:
    texts = ["same\n" * before + text + "\ntail\n" * after for text in (a, b, c)]
    cut = window(*texts)
    heads = {text[: cut.head] for text in texts}
    tails = {text[len(text) - cut.tail :] for text in texts}
    assert len(heads) == len(tails) == 1
    assert cut.head + cut.tail <= min(map(len, texts))
    for text in texts:
        assert cut.head == 0 or text[cut.head - 1] == "\n"
        assert cut.tail == 0 or text[len(text) - cut.tail - 1] == "\n"
