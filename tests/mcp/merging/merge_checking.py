"""What any correct merge of lines keeps to, as checks of a candidate; and the reader of the golden cases."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from cks_mcp.merging import Candidate, LineRange, merge3

GOLDEN = Path(__file__).parents[2] / "golden" / "diff3.json"

Part = str | tuple[str, str]
"""Text that stands in the result, or the two sides of a conflict."""


def golden_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads(GOLDEN.read_text())["cases"]
    for case in cases:
        for key in ("base", "ours", "theirs"):
            case[key] = _text(case[key])
        for answer in case.get("expect", ()):
            if "body" in answer:
                answer["body"] = _text(answer["body"])
    return cases


def _text(value: str | dict[str, Any]) -> str:
    if isinstance(value, str):
        return value
    out: list[str] = []
    for part in value["parts"]:
        numbers = range(part.get("from", 0), part.get("from", 0) + part.get("n", 1))
        out.extend(part["t"].replace("{i}", str(number)) for number in numbers)
    return "".join(out)


def lines(text: str) -> list[str]:
    """Lines with their ends; LF alone ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def cut(text: str, where: LineRange) -> str:
    return "".join(lines(text)[where.first - 1 : where.last])


def parts(candidate: Candidate) -> list[Part]:
    """The body cut at its conflicts, each marker checked for its width, its label and a line of its own."""
    body = lines(candidate.body)
    found: list[Part] = []
    done = 0
    width = candidate.marker_width
    for region in candidate.conflicts:
        first, last = region.candidate.first - 1, region.candidate.last
        block = body[first:last]
        middle = [k for k, line in enumerate(block) if line.rstrip("\r\n") == "=" * width]
        assert block[0].rstrip("\r\n") == "<" * width + " ours"
        assert block[-1].rstrip("\r\n") == ">" * width + " theirs"
        assert len(middle) == 1
        if done < first:
            found.append("".join(body[done:first]))
        found.append(("".join(block[1 : middle[0]]), "".join(block[middle[0] + 1 : -1])))
        done = last
    if done < len(body):
        found.append("".join(body[done:]))
    return found


def same_side(got: str, want: str) -> bool:
    """Equal, or equal but for the line end that a marker calls for at the end of a text."""
    return got == want or (bool(want) and not want.endswith("\n") and got in (want + "\n", want + "\r\n"))


def check(base: str, ours: str, theirs: str, skip: tuple[str, ...] = ()) -> Candidate:
    """Merge and check what always holds; `skip` names checks that equal lines at several places can break."""
    candidate = merge3(base, ours, theirs)
    found = parts(candidate)
    conflicts = [part for part in found if not isinstance(part, str)]
    assert candidate.has_markers == bool(conflicts) == bool(candidate.conflicts)
    assert len(candidate.warnings) <= 40
    assert (candidate.marker_width >= 7) if conflicts else (candidate.marker_width == 0)
    for (mine, yours), region in zip(conflicts, candidate.conflicts, strict=True):
        assert mine != yours
        assert same_side(mine, cut(ours, region.ours))
        assert same_side(yours, cut(theirs, region.theirs))
    last_line = len(lines(candidate.body))
    assert all(1 <= number <= max(last_line, 1) for hint in candidate.warnings for number in hint.lines)
    _check_counts(base, ours, theirs, found, skip)
    if not conflicts and "inv_ends" not in skip:
        assert set(lines(candidate.body)) <= set(lines(ours)) | set(lines(theirs))
    _check_changes(candidate, base, ours, theirs)
    return candidate


def _check_counts(base: str, ours: str, theirs: str, found: list[Part], skip: tuple[str, ...]) -> None:
    b, o, t = (Counter(line.rstrip("\r\n") for line in lines(text)) for text in (base, ours, theirs))
    least: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for part in found:
        mine, yours = (part, "") if isinstance(part, str) else part
        left, right = (Counter(line.rstrip("\r\n") for line in lines(text)) for text in (mine, yours))
        least += left | right
        most += left + right
    for line in b | o | t:
        if "inv_no_lost_insertions" not in skip:
            assert least[line] >= max(o[line] - b[line], t[line] - b[line]), f"inserted line lost: {line!r}"
        if "inv_kept_lines_kept" not in skip and o[line] >= b[line] <= t[line]:
            assert least[line] >= b[line], f"kept line missing: {line!r}"
    for line, times in most.items():
        assert times <= o[line] + t[line], f"line invented: {line!r}"


def _check_changes(candidate: Candidate, base: str, ours: str, theirs: str) -> None:
    for text, changes in ((ours, candidate.changes.ours), (theirs, candidate.changes.theirs)):
        assert len(lines(text)) - len(lines(base)) == changes.added - changes.removed
        assert (changes.added == changes.removed == 0) == (text == base)
