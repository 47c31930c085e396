"""Hints for whoever reviews a candidate: what a merge by lines cannot see. The text is never changed for them.

Everything is mechanical and starts from the lines that changed. At most `LIMIT` hints are given, gravest first.
"""

from collections.abc import Iterator
from itertools import chain, islice

from cks_mcp.merging.candidate import MergeWarning
from cks_mcp.merging.doubles import duplicate_bullet, heading_twice, moved_and_edited, table_row, text_twice
from cks_mcp.merging.scene import Scene
from cks_mcp.merging.structure import broken_fence, broken_table, front_matter_key, list_reordered

LIMIT = 40


def warnings_of(scene: Scene, base: str, ours: str, theirs: str) -> tuple[MergeWarning, ...]:
    """The hints for one merge of these texts; where there are more than LIMIT the last one says so."""
    found = chain(
        broken_fence(scene, ours, theirs),
        broken_table(scene),
        front_matter_key(scene, base, ours, theirs),
        table_row(scene),
        heading_twice(scene),
        moved_and_edited(scene),
        list_reordered(scene),
        text_twice(scene),
        duplicate_bullet(scene),
        touching_edits(scene),
    )
    hints = tuple(islice(_each_place_once(found), LIMIT + 1))
    if len(hints) > LIMIT:
        return (*hints[: LIMIT - 1], MergeWarning("more", (), "There are more warnings than are shown here."))
    return hints


def _each_place_once(found: Iterator[MergeWarning]) -> Iterator[MergeWarning]:
    """The hints without those whose lines a graver one has named."""
    named: set[tuple[int, ...]] = set()
    for hint in found:
        if not hint.lines or hint.lines not in named:
            named.add(hint.lines)
            yield hint


def touching_edits(scene: Scene) -> Iterator[MergeWarning]:
    """Edits of different sides with no line between them, both kept."""
    for k in range(1, len(scene.chunks)):
        before, after = scene.chunks[k - 1], scene.chunks[k]
        if before.b1 == after.b0:
            lines = scene.spans[k - 1][1] - 1, scene.spans[k][0]
            names = " and ".join(_NAMES[chunk.kind] for chunk in (before, after))
            text = f"{names} touch here; both are kept in the order of the base."
            yield scene.warning("touching_edits", lines, text[0].upper() + text[1:])


_NAMES = {
    "ours": "an edit by ours",
    "theirs": "an edit by theirs",
    "same": "an edit by both",
    "conflict": "a conflict",
}
