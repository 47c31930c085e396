"""The candidate as the warnings look at it: what each side added, by what it is, and where it stands."""

from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from itertools import chain, compress, islice
from typing import Literal

from cks_mcp.merging import markdown
from cks_mcp.merging.candidate import MergeWarning
from cks_mcp.merging.diff3 import Chunk, Texts
from cks_mcp.merging.lines import closed, join
from cks_mcp.merging.markers import Rendered

Side = Literal["ours", "theirs"]
SIDES: tuple[Side, Side] = ("ours", "theirs")
SHOWN = 60
"""Characters of a line that a warning quotes."""

Added = tuple[int, str, int]
"""A line that a side added: its index in the rendered lines, its text, and its conflict block or -1."""

Removed = tuple[int, str]
"""A base line that a side removed, with its index in the base."""

LOOKED_AT = 4_000
"""Changed lines of a side that warnings look at, less or more by one chunk: hints are not worth more time."""


BULLETS = frozenset("-*+0123456789")
HEADINGS = frozenset("#")
ROWS = frozenset("|")
FENCES = frozenset("`~")


class Additions:
    """Lines that a side added, in order but for those in conflicts, which come last."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.lines: list[str] = []
        self.blocks: dict[int, int] = {}

    @cached_property
    def firsts(self) -> list[str]:
        """The first character of each line that is not white space."""
        return [line.lstrip()[:1] for line in self.lines]

    def of(self, firsts: frozenset[str]) -> list[Added]:
        """The lines that begin with one of these characters."""
        return self._chosen(map(firsts.__contains__, self.firsts))

    def equal_to(self, lines: set[str]) -> list[Added]:
        """The lines that are among these."""
        return self._chosen(map(lines.__contains__, self.lines))

    def _chosen(self, choice: Iterable[bool]) -> list[Added]:
        chosen = compress(zip(self.indices, self.lines, strict=True), choice)
        return [(index, line, self.blocks.get(index, -1)) for index, line in chosen]


class Scene:
    """A rendered merge of the part of three texts between a `head` and a `tail` that they share."""

    def __init__(self, texts: Texts, chunks: list[Chunk], rendered: Rendered, head: str, tail: str) -> None:
        self.texts = texts
        self.chunks = chunks
        self.spans = rendered.spans
        self.lines = rendered.lines
        self.places = rendered.places
        self.head = head
        self.tail = tail
        self.skipped = head.count("\n")
        self.added: dict[Side, Additions] = {side: self._added(side) for side in SIDES}

    def _added(self, side: Side) -> Additions:
        """Lines inserted in chunks of one side, and in conflicts those that the base does not have there."""
        added = Additions()
        spans = [span for chunk, span in zip(self.chunks, self.spans, strict=True) if chunk.kind == side]
        indices = chain.from_iterable(range(first, end) for first, end in spans)
        added.indices += islice(indices, LOOKED_AT)
        added.lines += map(self.lines.__getitem__, added.indices)
        known, base = (-1, -1), frozenset[str]()
        for number, place in enumerate(self.places):
            if len(added.lines) >= LOOKED_AT:
                break
            if (place.chunk.b0, place.chunk.b1) != known:  # thousands of places may lie in one chunk
                known = (place.chunk.b0, place.chunk.b1)
                base = frozenset(self.texts.base[known[0] : known[1]])
            start, lines = place.first + 1, place.block.ours
            if side == "theirs":
                start, lines = start + len(lines) + 1, place.block.theirs
            for index, line in enumerate(islice(lines, LOOKED_AT), start):
                if line not in base:
                    added.indices.append(index)
                    added.lines.append(line)
                    added.blocks[index] = number
        return added

    @cached_property
    def bullets(self) -> dict[Side, list[Added]]:
        return {side: self.added[side].of(BULLETS) for side in SIDES}

    @cached_property
    def removed(self) -> dict[Side, list[Removed]]:
        """Base lines that a side removed."""
        ours: list[Removed] = []
        theirs: list[Removed] = []
        for kind, b0, b1, o0, o1, t0, t1 in self.chunks:
            if b0 == b1 or (len(ours) >= LOOKED_AT and len(theirs) >= LOOKED_AT):
                continue
            base = list(zip(range(b0, b1), self.texts.base[b0:b1], strict=True))
            if kind == "ours":
                ours += base
            elif kind == "theirs":
                theirs += base
            else:
                for found, lines in ((ours, self.texts.ours[o0:o1]), (theirs, self.texts.theirs[t0:t1])):
                    kept = set(lines)
                    found += islice((entry for entry in base if entry[1] not in kept), LOOKED_AT)
        return {"ours": ours, "theirs": theirs}

    @cached_property
    def moved(self) -> dict[Side, dict[str, int]]:
        """Added lines that the base has too, with their last index: what a side may have moved."""
        found: dict[Side, dict[str, int]] = {}
        for side in SIDES:
            added = dict(zip(self.added[side].lines, self.added[side].indices, strict=True))
            both = added.keys() & self.texts.base if added else ()
            found[side] = {line: added[line] for line in both if line and not line.isspace()}
        return found

    @cached_property
    def removed_heads(self) -> set[Side]:
        """The sides that removed a row of dashes under a table's head."""
        return {side for side in SIDES if any(markdown.is_delimiter(line) for _, line in self.removed[side])}

    @property
    def cut_short(self) -> bool:
        """Whether there were too many changes to look at each."""
        return any(max(len(self.added[side].lines), len(self.removed[side])) >= LOOKED_AT for side in SIDES)

    @cached_property
    def code(self) -> list[tuple[int, int]]:
        """Fenced code as ranges of indices."""
        ranges, opened = markdown.fences(self.head + join(self.lines))
        if opened >= 0:
            ranges.append((opened, self.skipped + len(self.lines)))
        return [(first - self.skipped, end - self.skipped) for first, end in ranges]

    @cached_property
    def tables(self) -> dict[int, dict[Side, list[tuple[int, str]]]]:
        """Tables with added rows by the index of their first row: the rows that each side added."""
        rows = sorted((index, line, side) for side in SIDES for index, line, _ in self.added[side].of(ROWS))
        found: dict[int, dict[Side, list[tuple[int, str]]]] = {}
        start = last = -1
        for index, line, side in rows:
            above = index
            while above > max(last + 1, 0) and markdown.is_row(self.lines[above - 1]):
                above -= 1
            if last < 0 or above > last + 1:
                start = above
            last = index
            found.setdefault(start, {"ours": [], "theirs": []})[side].append((index, line))
        return found

    def in_code(self, index: int) -> bool:
        """Whether a rendered line stands in fenced code."""
        at = bisect_right(self.code, (index, len(self.lines) + 1)) - 1
        return at >= 0 and index < self.code[at][1]

    def chosen(self, side: Side) -> str:
        """The merged text with every conflict decided for one side."""
        lines: list[str] = []
        end = 0
        for place in self.places:
            lines += self.lines[end : place.first]
            lines += place.block.ours if side == "ours" else place.block.theirs
            end = place.end
        return self.head + join([*map(closed, lines), *self.lines[end:]]) + self.tail

    def index_of(self, side: Side, chosen: int) -> int:
        """Where a line of `chosen(side)`, counted from 0, stands in the rendered lines."""
        index = chosen - self.skipped
        for place in self.places:
            if index < place.first:
                break
            mine = len(place.block.ours if side == "ours" else place.block.theirs)
            if index < place.first + mine:
                return index + (1 if side == "ours" else 2 + len(place.block.ours))
            index += place.end - place.first - mine
        return index

    def warning(self, code: str, indices: tuple[int, ...], text: str) -> MergeWarning:
        """A warning about rendered lines; where one was removed the nearest line stands for it."""
        last = self.skipped + len(self.lines) + self.tail.count("\n")
        numbers = {max(1, min(index + self.skipped + 1, last)) for index in indices}
        return MergeWarning(code, tuple(sorted(numbers)), text)


def other(side: Side) -> Side:
    """The other side."""
    return "theirs" if side == "ours" else "ours"


def quoted(line: str) -> str:
    """A line as a warning shows it."""
    text = closed(line).strip()
    return f"'{text[:SHOWN]}…'" if len(text) > SHOWN else f"'{text}'"
