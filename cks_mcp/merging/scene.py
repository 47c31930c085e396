"""The candidate as the warnings look at it: what each side added, by what it is, and where it stands."""

from functools import cached_property
from itertools import islice, repeat
from typing import Literal, NamedTuple

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


class Kinds(NamedTuple):
    """Added lines by what they are."""

    bullets: list[Added]
    headings: list[Added]
    rows: list[Added]
    fences: list[Added]
    others: list[Added]


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
        self.added: dict[Side, list[Added]] = {"ours": [], "theirs": []}
        self._gather()

    def _gather(self) -> None:
        """Lines inserted in chunks of one side, and in conflicts those that the base does not have there."""
        ours, theirs = self.added["ours"], self.added["theirs"]
        outside = repeat(-1)
        for (kind, *_), (first, end) in zip(self.chunks, self.spans, strict=True):
            if kind == "ours" and len(ours) < LOOKED_AT:
                ours += zip(range(first, end), self.lines[first:end], outside, strict=False)
            elif kind == "theirs" and len(theirs) < LOOKED_AT:
                theirs += zip(range(first, end), self.lines[first:end], outside, strict=False)
        for number, place in enumerate(self.places):
            if len(ours) >= LOOKED_AT and len(theirs) >= LOOKED_AT:
                break
            base = set(self.texts.base[place.chunk.b0 : place.chunk.b1])
            start = place.first + 1
            for found, lines in ((ours, place.block.ours), (theirs, place.block.theirs)):
                new = ((start + k, line, number) for k, line in enumerate(lines) if line not in base)
                found += islice(new, LOOKED_AT)
                start += len(lines) + 1

    @cached_property
    def kinds(self) -> dict[Side, Kinds]:
        return {side: _sorted_out(self.added[side]) for side in SIDES}

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

    @property
    def cut_short(self) -> bool:
        """Whether there were too many changes to look at each."""
        return any(len(found[side]) >= LOOKED_AT for found in (self.added, self.removed) for side in SIDES)

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
        rows = sorted((index, line, side) for side in SIDES for index, line, _ in self.kinds[side].rows)
        found: dict[int, dict[Side, list[tuple[int, str]]]] = {}
        start = last = -1
        for index, line, side in rows:
            above = index
            while above > max(last + 1, 0) and markdown.is_row(self.lines[above - 1]):
                above -= 1
            if last < 0 or above > last + 1 or not markdown.is_row(self.lines[above - 1]):
                start = above
            last = index
            found.setdefault(start, {"ours": [], "theirs": []})[side].append((index, line))
        return found

    def in_code(self, index: int) -> bool:
        return any(first <= index < end for first, end in self.code)

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
        """A warning about rendered lines."""
        return MergeWarning(code, tuple(index + self.skipped + 1 for index in indices), text)


def other(side: Side) -> Side:
    """The other side."""
    return "theirs" if side == "ours" else "ours"


def quoted(line: str) -> str:
    """A line as a warning shows it."""
    text = closed(line).strip()
    return f"'{text[:SHOWN]}…'" if len(text) > SHOWN else f"'{text}'"


def _sorted_out(added: list[Added]) -> Kinds:
    kinds = Kinds([], [], [], [], [])
    for entry in added:
        first = entry[1].lstrip()[:1]
        if not first:
            continue
        if first in "-*+" or first.isdigit():
            kinds.bullets.append(entry)
        elif first == "#":
            kinds.headings.append(entry)
        elif first == "|":
            kinds.rows.append(entry)
        elif first in "`~":
            kinds.fences.append(entry)
        else:
            kinds.others.append(entry)
    return kinds
