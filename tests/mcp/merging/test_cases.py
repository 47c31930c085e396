"""The golden merges: each accepted answer was judged by hand."""

from __future__ import annotations

from typing import Any

import pytest
from merge_checking import check, golden_cases, parts, same_side

from cks_mcp.merging import Candidate, merge3, merge_text

CASES = golden_cases()


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_golden_case(case: dict[str, Any]) -> None:
    candidate = check(case["base"], case["ours"], case["theirs"], tuple(case.get("skip", ())))
    assert not case.get("expect") or any(_accepted(candidate, answer) for answer in case["expect"])
    least, most = case.get("conflicts", (0, 10**9))
    assert least <= len(candidate.conflicts) <= most
    assert all(needle in candidate.body for needle in case.get("needle", ()))


def _accepted(candidate: Candidate, answer: dict[str, Any]) -> bool:
    if "body" in answer:
        return candidate.body == answer["body"] and not candidate.has_markers
    if "body_with_markers" in answer:
        return candidate.body == answer["body_with_markers"] and candidate.has_markers
    found, wanted = parts(candidate), answer["chunks"]
    return len(found) == len(wanted) and all(
        got == want
        if isinstance(want, str)
        else not isinstance(got, str) and same_side(got[0], want["o"]) and same_side(got[1], want["t"])
        for got, want in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_sides_of_a_golden_case_can_be_swapped(case: dict[str, Any]) -> None:
    one = merge3(case["base"], case["ours"], case["theirs"])
    two = merge3(case["base"], case["theirs"], case["ours"])
    assert one.has_markers == two.has_markers
    assert parts(one) == [part if isinstance(part, str) else part[::-1] for part in parts(two)]
    assert (one.changes.ours, one.changes.theirs) == (two.changes.theirs, two.changes.ours)


def test_merge_text_is_the_body_and_whether_it_has_markers() -> None:
    assert merge_text("a\nb\n", "A\nb\n", "a\nb\nc\n") == ("A\nb\nc\n", False)
    assert merge_text("a\n", "b\n", "c\n")[1]


def test_a_region_names_its_lines_in_all_four_texts() -> None:
    base = "".join(f"line {k}\n" for k in range(1, 301))
    ours = base.replace("line 200\n", "ours\nours too\n").replace("line 3\n", "")
    theirs = base.replace("line 200\n", "theirs\n")
    candidate = merge3(base, ours, theirs)
    (region,) = candidate.conflicts
    assert (region.base.first, region.base.last) == (200, 200)
    assert (region.ours.first, region.ours.last) == (199, 200)
    assert (region.theirs.first, region.theirs.last) == (200, 200)
    assert (region.candidate.first, region.candidate.last) == (199, 204)
    assert (candidate.changes.ours.added, candidate.changes.ours.removed) == (2, 2)
    assert (candidate.changes.theirs.added, candidate.changes.theirs.removed) == (1, 1)


def test_an_empty_side_of_a_region_stands_before_a_line() -> None:
    (region,) = merge3("a\nb\nc\n", "a\nB\nc\n", "a\nc\n").conflicts
    assert (region.theirs.first, region.theirs.last, len(region.theirs)) == (2, 1, 0)
