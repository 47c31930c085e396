"""Warnings about the frame of a document: fences, tables, front matter and the order of lists."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from cks_mcp.merging import markdown
from cks_mcp.merging.candidate import MergeWarning
from cks_mcp.merging.scene import FENCES, SIDES, Scene, other, quoted

FRONT_MATTER_MAX = 65_536
"""Characters after which front matter is not looked for any more."""


def broken_fence(scene: Scene, ours: str, theirs: str) -> Iterator[MergeWarning]:
    """A code fence that nothing closes, where each side for itself closed every one."""
    if not markdown.may_have_fences(ours) and not markdown.may_have_fences(theirs):
        return
    touched = (
        any(scene.added[side].of(FENCES) for side in SIDES)
        or any(markdown.may_have_fences(line) for side in SIDES for _, line in scene.removed[side])
        or scene.cut_short
    )
    if not touched or any(markdown.fences(text)[1] >= 0 for text in (ours, theirs)):
        return
    for side in SIDES:
        _, opened = markdown.fences(scene.chosen(side))
        if opened >= 0:
            text = "A code fence opens here and nothing closes it; each side for itself closed its fences."
            yield scene.warning("broken_fence", (scene.index_of(side, opened),), text)
            return


def broken_table(scene: Scene) -> Iterator[MergeWarning]:
    """Rows of one table with different numbers of cells from each side, and rows whose table head is gone."""
    for start, rows in scene.tables.items():
        widths = {side: {len(markdown.cells(line)): index for index, line in rows[side]} for side in SIDES}
        if widths["ours"] and widths["theirs"] and widths["ours"].keys() != widths["theirs"].keys():
            indices = {index for side in SIDES for index in widths[side].values()}
            text = "Ours and theirs wrote rows with different numbers of cells in this table."
            yield scene.warning("broken_table", tuple(indices), text)
        headless = not any(map(markdown.is_delimiter, scene.lines[start : start + 2]))
        for side in SIDES:
            if rows[side] and headless and other(side) in scene.removed_heads:
                text = f"{other(side).capitalize()} removed the head of this table, {side} added rows to it."
                yield scene.warning("broken_table", (start,), text)


def front_matter_key(scene: Scene, base: str, ours: str, theirs: str) -> Iterator[MergeWarning]:
    """A front-matter key that both sides set, to different values or at two places."""
    of_base, of_ours, of_theirs = (
        markdown.front_matter(text[:FRONT_MATTER_MAX]) for text in (base, ours, theirs)
    )
    if of_base in (of_ours, of_theirs):
        return
    places = _lines_by_key(scene)
    for key in sorted(of_ours.keys() | of_theirs.keys()):
        was, mine, yours = of_base.get(key), of_ours.get(key), of_theirs.get(key)
        if was != mine and was != yours:
            lines = tuple(places.get(key, ()))
            if mine != yours:
                text = f"Ours and theirs both set the front-matter key {quoted(key)}, to different values."
                yield MergeWarning("front_matter_key", lines, text)
            elif len(lines) > 1:
                text = f"The front-matter key {quoted(key)} stands twice: ours and theirs both added it."
                yield MergeWarning("front_matter_key", lines, text)


def _lines_by_key(scene: Scene) -> dict[str, list[int]]:
    """Where the keys of the candidate's front matter stand."""
    found: dict[str, list[int]] = {}
    for number, line in enumerate(chain(scene.head.split("\n")[:-1], scene.lines), 1):
        if number > 1 and line.rstrip() in ("---", "..."):
            break
        found.setdefault(markdown.key_of(line), []).append(number)
    return found


def list_reordered(scene: Scene) -> Iterator[MergeWarning]:
    """A list in which one side moved items while the other changed it; one warning a list."""
    for side in SIDES:
        added = {line: k for line, k in scene.moved[side].items() if markdown.bullet_text(line) is not None}
        moved = [(b, line) for b, line in scene.removed[side] if line in added] if added else []
        by_other = (other(side), "conflict")
        changed = [chunk for chunk in scene.chunks if chunk.kind in by_other] if moved else []
        ends = [chunk.b1 for chunk in changed]
        end = -1
        for b, line in moved:
            if b < end:
                continue
            first, end = _list_around(scene.texts.base, b)
            near = bisect_left(ends, first)
            if near < len(changed) and changed[near].b0 <= end:
                text = (
                    f"{side.capitalize()} moved {quoted(line)} within a list that {other(side)} changed too."
                )
                yield scene.warning("list_reordered", (added[line],), text)


def _list_around(base: list[str], at: int) -> tuple[int, int]:
    """The lines of the list that this item stands in."""
    first = end = at
    while first > 0 and _of_list(base[first - 1]):
        first -= 1
    while end < len(base) and _of_list(base[end]):
        end += 1
    return first, end


def _of_list(line: str) -> bool:
    return line.startswith((" ", "\t")) or markdown.bullet_text(line) is not None
