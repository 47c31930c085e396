"""Warnings: each kind where it belongs, silence where it does not, and never more than forty."""

from __future__ import annotations

import time

import pytest
from merge_checking import lines

from cks_mcp.merging import Candidate, MergeWarning, merge3

PLAN = "# Plan\n\n## Goals\n\n- fast\n- small\n\n## Risks\n\n- none yet\n\nThe end.\n"


def warned(base: str, ours: str, theirs: str, code: str) -> list[MergeWarning]:
    return [hint for hint in merge3(base, ours, theirs).warnings if hint.code == code]


def shown(candidate: Candidate, hint: MergeWarning) -> list[str]:
    """The lines of the candidate that a warning points at."""
    body = lines(candidate.body)
    return [body[number - 1].strip() for number in hint.lines]


def only(base: str, ours: str, theirs: str, code: str) -> list[str]:
    """The lines under the one warning there is; the same kind is given with the sides swapped."""
    candidate = merge3(base, ours, theirs)
    assert [hint.code for hint in candidate.warnings] == [code]
    assert [hint.code for hint in merge3(base, theirs, ours).warnings] == [code]
    return shown(candidate, candidate.warnings[0])


def test_nothing_to_say() -> None:
    assert merge3(PLAN, PLAN.replace("fast", "quick"), PLAN.replace("The end.", "Done.")).warnings == ()
    assert merge3(PLAN, PLAN.replace("fast", "quick"), PLAN).warnings == ()
    assert merge3(PLAN, PLAN + "x\n", PLAN + "x\n").warnings == ()


def test_touching_edits() -> None:
    found = only("a\nb\nc\nd\n", "a\nB\nc\nd\n", "a\nb\nC\nd\n", "touching_edits")
    assert found == ["B", "C"]
    assert only("a\nb\nc\n", "a\nc\n", "a\nb\nnew\nc\n", "touching_edits") == ["a", "new"]


@pytest.mark.parametrize(
    ("mine", "yours"),
    [
        ("- needs review", "- Needs review."),
        ("- [ ] review needed", "* needs to be reviewed"),
        ("- add retries to the HTTP client", "- The HTTP client should retry"),
        ("1. Überprüfe die Schlüssel", "- überprüfe die schlüssel!"),
        ("- 需要检查密钥", "- 密钥需要检查"),
    ],
)
def test_a_bullet_from_both_sides_in_other_words(mine: str, yours: str) -> None:
    ours = PLAN.replace("- small\n", f"- small\n{mine}\n")
    theirs = PLAN.replace("- none yet\n", f"- none yet\n{yours}\n")
    assert only(PLAN, ours, theirs, "duplicate_bullet") == [mine, yours]


@pytest.mark.parametrize(
    ("mine", "yours"),
    [
        ("- release 1 on Monday", "- release 2 on Monday"),
        ("- rotate the keys", "- write the manual"),
        ("- the", "- a"),
    ],
)
def test_bullets_that_say_different_things(mine: str, yours: str) -> None:
    ours = PLAN.replace("- small\n", f"- small\n{mine}\n")
    theirs = PLAN.replace("- none yet\n", f"- none yet\n{yours}\n")
    assert merge3(PLAN, ours, theirs).warnings == ()


def test_equal_bullets_are_found_among_very_many() -> None:
    many = "".join(f"- ours {k}\n" for k in range(300))
    others = "".join(f"- theirs {k}\n" for k in range(300))
    ours = PLAN.replace("- small\n", f"- small\n{many}- Same thing.\n")
    theirs = PLAN.replace("- none yet\n", f"- none yet\n{others}- same thing\n")
    (hint,) = warned(PLAN, ours, theirs, "duplicate_bullet")
    assert "same thing" in hint.text


def test_a_heading_twice() -> None:
    ours = PLAN.replace("## Risks", "## Notes\n\nours\n\n## Risks")
    theirs = PLAN + "\n## notes ##\n\ntheirs\n"
    assert only(PLAN, ours, theirs, "heading_twice") == ["## Notes", "## notes ##"]
    in_code = PLAN + "\n```sh\n## Notes\n```\n"
    assert warned(PLAN, ours, in_code, "heading_twice") == []
    assert warned(PLAN, ours, PLAN + "\n### Notes\n\ntheirs\n", "heading_twice") == []


def test_text_twice() -> None:
    text = "Both of us explain the plan here.\nIn two lines that are alike.\n"
    ours = PLAN.replace("## Goals\n", f"{text}\n## Goals\n")
    assert only(PLAN, ours, PLAN + text, "text_twice") == ["Both of us explain the plan here."] * 2


def test_a_front_matter_key_set_by_both() -> None:
    base = "---\ntitle: x\ntags: a\nowner: ann\n---\n# X\n"
    (hint,) = warned(
        base, base.replace("tags: a", "tags: b"), base.replace("tags: a", "tags: c"), "front_matter_key"
    )
    assert "'tags'" in hint.text
    ours = base.replace("title: x\n", "title: x\nstatus: open\n")
    theirs = base.replace("owner: ann\n", "owner: ann\nstatus: done\n")
    assert only(base, ours, theirs, "front_matter_key") == ["status: open", "status: done"]
    same = base.replace("owner: ann\n", "owner: ann\nstatus: open\n")
    assert only(base, ours, same, "front_matter_key") == ["status: open", "status: open"]
    assert warned(base, ours, base.replace("owner: ann", "owner: bob"), "front_matter_key") == []


TABLE = "| name | state |\n|---|---|\n| a | 1 |\n| b | 2 |\n| c | 3 |\n"


def test_a_table_row_set_by_both() -> None:
    ours = TABLE.replace("| a | 1 |\n", "| a | 1 |\n| new | ours |\n")
    theirs = TABLE + "| New | theirs |\n"
    assert only(TABLE, ours, theirs, "table_row") == ["| new | ours |", "| New | theirs |"]
    assert merge3(TABLE, ours, TABLE + "| other | x |\n").warnings == ()


def test_rows_of_different_width() -> None:
    ours = "".join(line + ("---|" if "-" in line else " x |") + "\n" for line in TABLE.splitlines())
    theirs = TABLE + "| d | 4 |\n"
    candidate = merge3(TABLE, ours, theirs)
    (hint,) = [hint for hint in candidate.warnings if hint.code == "broken_table"]
    assert "| d | 4 |" in shown(candidate, hint)
    escaped = TABLE + "| d \\| e | 4 |\n"
    assert warned(TABLE, TABLE.replace("| a | 1 |", "| a | 9 |"), escaped, "broken_table") == []


def test_rows_whose_table_head_is_gone() -> None:
    ours = TABLE.replace("| name | state |\n|---|---|\n", "")
    theirs = TABLE + "| d | 4 |\n"
    (hint,) = warned(TABLE, ours, theirs, "broken_table")
    assert hint.text.startswith("Ours removed the head")


def test_a_fence_that_nothing_closes() -> None:
    base = "Text.\n\n```\na\nb\n```\n\nMore.\n\nEnd.\n"
    ours = base.replace("a\nb\n```\n", "a\nb\n```\n\nBetween.\n")
    theirs = base.replace("More.\n", "More.\n\n~~~\ncode\n~~~\n")
    assert merge3(base, ours, theirs).warnings == ()
    longer = base.replace("```\na\n", "````\na\n").replace("b\n```\n", "b\n````\n")
    inner = base.replace("a\nb\n", "a\nb\nc\n```\n\n```\nd\n")
    candidate = merge3(base, longer, inner)
    assert [hint.code for hint in candidate.warnings if hint.code == "broken_fence"] == []
    opened = base.replace("```\na\n", "````\na\n").replace("b\n```\n", "b\n````\n")
    shortened = base.replace("b\n```\n", "b\n").replace("More.\n", "More.\n```\n")
    candidate = merge3(base, opened, shortened)
    (hint,) = [hint for hint in candidate.warnings if hint.code == "broken_fence"]
    assert shown(candidate, hint) == ["```"]


def test_a_list_that_both_changed_and_one_reordered() -> None:
    base = "# L\n\n- one\n- two\n- three\n- four\n- five\n\nend\n"
    ours = base.replace("- one\n", "").replace("- five\n", "- five\n- one\n")
    theirs = base.replace("- three\n", "- three\n- three and a half\n")
    assert only(base, ours, theirs, "list_reordered") == ["- one"]
    elsewhere = base.replace("end\n", "END\n")
    assert warned(base, ours, elsewhere, "list_reordered") == []


def test_a_block_that_one_moved_and_the_other_edited() -> None:
    block = "## Setup\n\nInstall the package first.\nThen run the program.\n\n"
    base = f"# D\n\n{block}## Use\n\nuse it\n\n## End\n\nbye\n"
    ours = f"# D\n\n## Use\n\nuse it\n\n## End\n\nbye\n\n{block}"
    theirs = base.replace("run the program", "start the program")
    candidate = merge3(base, ours, theirs)
    (hint,) = [hint for hint in candidate.warnings if hint.code == "moved_and_edited"]
    assert candidate.has_markers
    assert hint.text.startswith("Ours moved")


def test_line_numbers_count_what_stands_before_the_changes() -> None:
    before = "".join(f"paragraph {k}\n" for k in range(500))
    (hint,) = merge3(before + "a\nb\nc\n", before + "A\nb\nc\n", before + "a\nB\nc\n").warnings
    assert hint.lines == (501, 502)


def test_at_most_forty_and_the_last_says_that_there_are_more() -> None:
    base = "".join(f"{k}\n" for k in range(400))
    ours = "".join(f"{k}\n" if k % 4 else f"ours {k}\n" for k in range(400))
    theirs = "".join(f"{k}\n" if k % 4 - 1 else f"theirs {k}\n" for k in range(400))
    candidate = merge3(base, ours, theirs)
    assert not candidate.has_markers
    assert len(candidate.warnings) == 40
    assert candidate.warnings[-1].code == "more"


def test_long_lines_are_quoted_short() -> None:
    long = "word " * 2_000
    ours = PLAN.replace("- small\n", f"- small\n- {long}\n")
    theirs = PLAN.replace("- none yet\n", f"- none yet\n- {long}!\n")
    assert all(len(hint.text) < 300 for hint in merge3(PLAN, ours, theirs).warnings)


def test_warnings_take_bounded_time() -> None:
    base = "".join(f"- item {k % 500}\n" for k in range(20_000))
    ours = "".join(f"- item {k % 500}\n" for k in range(20_000, 0, -1))
    theirs = "".join(f"| {k % 9} | x |\n# {k % 50}\n```\n" for k in range(7_000))
    began = time.process_time()
    merge3(base, ours, theirs)
    assert time.process_time() - began < 4


@pytest.mark.parametrize(
    "line",
    [
        "# " + " " * 100_000 + "x",
        "#" * 100_000 + " x",
        " " * 100_000 + "-|x",
        "| - " + " " * 100_000 + "x",
        "- " + "word " * 20_000,
        "- " + " " * 100_000 + "[",
        "key" + " " * 60_000,
        "`" * 100_000,
        "|" * 50_000,
        "| " + "\\|" * 50_000,
        "1" * 100_000 + ". x",
    ],
)
def test_long_lines_take_time_in_proportion(line: str) -> None:
    base = "---\na: b\n---\none\n\ntwo\n\nthree\n"
    ours = base.replace("a: b\n", f"a: b\n{line}\n").replace("one\n", f"one\n{line}\n")
    theirs = base.replace("a: b\n", f"{line}!\na: b\n").replace("three\n", f"three\n{line}?\n")
    began = time.process_time()
    merge3(base, ours, theirs)
    assert time.process_time() - began < 2
