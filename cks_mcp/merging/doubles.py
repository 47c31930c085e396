"""Warnings about what stands in a candidate twice, in the same or in other words, and about moved text."""

from collections.abc import Iterator

from cks_mcp.merging import markdown
from cks_mcp.merging.candidate import MergeWarning
from cks_mcp.merging.diff3 import sides
from cks_mcp.merging.scene import BULLETS, FENCES, HEADINGS, ROWS, SIDES, Added, Scene, other, quoted

ALIKE = 0.6
"""Share of words in common (Dice) from which two bullets may say the same."""
ALIKE_MAX = 64
"""Added bullets of a side beyond which only equal ones are looked for: hints among so many are noise."""
COMMON = 8
"""A word that more bullets of a side have than this does not bring two bullets together."""
TELLING = 12
"""Characters from which it means something to find a line twice."""
NOT_PROSE = BULLETS | HEADINGS | ROWS | FENCES


def table_row(scene: Scene) -> Iterator[MergeWarning]:
    """Rows of one table with the same first cell, one from each side."""
    for rows in scene.tables.values():
        if not rows["ours"] or not rows["theirs"]:
            continue
        mine = {_first_cell(line): index for index, line in rows["ours"]}
        for index, line in rows["theirs"]:
            cell = _first_cell(line)
            if cell and cell in mine:
                text = f"Ours and theirs both set the table row {quoted(cell)}."
                yield scene.warning("table_row", (mine[cell], index), text)


def _first_cell(line: str) -> str:
    cells = markdown.cells(line)
    return "" if not cells or markdown.is_delimiter(line) else markdown.folded(cells[0])


def heading_twice(scene: Scene) -> Iterator[MergeWarning]:
    """The same heading added by each side, at two places."""
    mine = {markdown.heading(entry[1]): entry for entry in scene.added["ours"].of(HEADINGS)}
    for entry in scene.added["theirs"].of(HEADINGS) if mine else ():
        twin = mine.get(markdown.heading(entry[1]))
        if twin is None or markdown.heading(entry[1]) is None or _in_one_block(twin, entry):
            continue
        if not scene.in_code(entry[0]) and not scene.in_code(twin[0]):
            text = f"Ours and theirs both added the heading {quoted(entry[1])}."
            yield scene.warning("heading_twice", (twin[0], entry[0]), text)


def text_twice(scene: Scene) -> Iterator[MergeWarning]:
    """Lines of prose that each side added, at two places; lines in a row are one warning."""
    ours, theirs = scene.added["ours"], scene.added["theirs"]
    both = {line for line in set(ours.lines).intersection(theirs.lines) if _telling(line)}
    mine = {entry[1]: entry for entry in ours.equal_to(both)} if both else {}
    last = (-2, -2)
    for entry in theirs.equal_to(both) if both else ():
        twin = mine[entry[1]]
        if not _in_one_block(twin, entry):
            follows = (twin[0] - 1, entry[0] - 1) == last
            last = twin[0], entry[0]
            if not follows:
                text = f"Ours and theirs both added {quoted(entry[1])}; it stands here twice."
                yield scene.warning("text_twice", last, text)


def moved_and_edited(scene: Scene) -> Iterator[MergeWarning]:
    """Lines that one side moved away while the other edited the place where they were."""
    for side in SIDES:
        places = scene.moved[side]
        for chunk, (first, end) in zip(scene.chunks, scene.spans, strict=True) if places else ():
            if chunk.kind != "conflict" or chunk.b0 == chunk.b1:
                continue
            kept = set(sides(scene.texts, chunk)[SIDES.index(side)])
            base = (line for line in scene.texts.base[chunk.b0 : chunk.b1] if line not in kept)
            moved = [line for line in base if line in places and not first <= places[line] < end]
            if sum(map(len, moved)) >= TELLING:
                text = f"{side.capitalize()} moved {quoted(moved[0])} here, {other(side)} edited it where it was."
                yield scene.warning("moved_and_edited", (places[moved[0]], first), text)


def duplicate_bullet(scene: Scene) -> Iterator[MergeWarning]:
    """List items, one from each side, that say the same in the same or in other words."""
    mine, yours = scene.bullets["ours"], scene.bullets["theirs"]
    pairs = _alike(mine, yours) if max(len(mine), len(yours)) <= ALIKE_MAX else _equal(mine, yours)
    for one, two in pairs:
        if not _in_one_block(one, two):
            text = f"Ours added {quoted(one[1])}, theirs added {quoted(two[1])}: they may say the same."
            yield scene.warning("duplicate_bullet", (one[0], two[0]), text)


def _equal(mine: list[Added], yours: list[Added]) -> Iterator[tuple[Added, Added]]:
    by_text = {_plain(entry[1]): entry for entry in mine}
    for entry in yours:
        twin = by_text.get(_plain(entry[1]))
        if twin is not None:
            yield twin, entry


def _plain(line: str) -> str:
    return line.strip(" \t\r\n-*+.;,!").casefold()


def _alike(mine: list[Added], yours: list[Added]) -> Iterator[tuple[Added, Added]]:
    """For each of `yours` the most alike of `mine`, found through words that few of them have."""
    bags = [markdown.words(markdown.bullet_text(entry[1]) or "") for entry in mine]
    having: dict[str, list[int]] = {}
    for number, bag in enumerate(bags):
        for word in bag:
            having.setdefault(word, []).append(number)
    few = {word: numbers for word, numbers in having.items() if len(numbers) <= COMMON}
    for entry in yours:
        bag = markdown.words(markdown.bullet_text(entry[1]) or "")
        near = {number for word in few.keys() & bag for number in few[word]}
        best = max(near, key=lambda number: (_dice(bags[number], bag), -number), default=None)
        if best is not None and _dice(bags[best], bag) >= ALIKE:
            yield mine[best], entry


def _dice(a: frozenset[str], b: frozenset[str]) -> float:
    """Share of words in common; none where the numbers in them differ."""
    if {word for word in a if word.isdigit()} != {word for word in b if word.isdigit()}:
        return 0.0
    return 2 * len(a & b) / (len(a) + len(b))


def _telling(line: str) -> bool:
    text = line.strip()
    return len(text) >= TELLING and text[0] not in NOT_PROSE


def _in_one_block(one: Added, two: Added) -> bool:
    return one[2] == two[2] >= 0
