"""Conflict markers: how wide, with which line end, and the text of chunks with markers in it."""

import re
from itertools import count
from typing import NamedTuple

from cks_mcp.merging.diff3 import Block, Chunk, Texts, parts_of, sides
from cks_mcp.merging.myers import Budget

WIDTH = 7
WIDTH_MAX = 256
SIGNS = "<=>|"
LABELS = (("<", " ours"), ("=", ""), (">", " theirs"))
_LIKE = re.compile(r"^(?:<{7,}|={7,}|>{7,}|\|{7,})", re.MULTILINE)


class Place(NamedTuple):
    """A conflict block and the lines of the candidate that it fills, end excluded."""

    chunk: Chunk
    block: Block
    first: int
    end: int


class Rendered(NamedTuple):
    """The merged lines, where each chunk stands in them, and the conflict blocks."""

    lines: list[str]
    spans: list[tuple[int, int]]
    places: list[Place]


def width_for(*texts: str) -> int:
    """Seven, or one more than the longest marker-like run that begins a line of these texts.

    Where that would make markers of absurd length: the least width that no such run has.
    """
    runs: set[int] = set()
    for text in texts:
        if any(sign in text and sign * WIDTH in text for sign in SIGNS):
            runs.update(map(len, _LIKE.findall(text)))
    width = max(runs, default=WIDTH - 1) + 1
    return width if width <= WIDTH_MAX else next(width for width in count(WIDTH) if width not in runs)


def uses_crlf(*texts: str) -> bool:
    """Whether more than half of the line ends are CRLF."""
    crlf = sum(text.count("\r\n") for text in texts if "\r" in text)
    return crlf > 0 and 2 * crlf > sum(text.count("\n") for text in texts)


class Style(NamedTuple):
    """How markers are written; `end` stands between a line and its LF."""

    width: int
    end: str

    def block(self, ours: list[str], theirs: list[str]) -> list[str]:
        """The lines of a conflict, each marker on a line of its own."""
        opening, middle, closing = (sign * self.width + label + self.end for sign, label in LABELS)
        return [opening, *ours, middle, *theirs, closing]


def render(texts: Texts, chunks: list[Chunk], style: Style) -> Rendered:
    """Base lines that both sides kept, and each chunk as its side has it or between markers."""
    base, ours, theirs = texts
    budget = Budget(len(ours) + len(theirs))
    lines: list[str] = []
    spans: list[tuple[int, int]] = []
    places: list[Place] = []
    end = 0
    for chunk in chunks:
        lines += base[end : chunk.b0]
        first = len(lines)
        if chunk.kind == "ours":
            lines += ours[chunk.o0 : chunk.o1]
        elif chunk.kind == "theirs":
            lines += theirs[chunk.t0 : chunk.t1]
        elif chunk.kind == "same":
            lines += sides(texts, chunk)[0]
        else:
            for part in parts_of(texts, chunk, style.end, budget):
                if isinstance(part, Block):
                    written = style.block(part.ours, part.theirs)
                    places.append(Place(chunk, part, len(lines), len(lines) + len(written)))
                    lines += written
                else:
                    lines += part
        spans.append((first, len(lines)))
        end = chunk.b1
    lines += base[end:]
    return Rendered(lines, spans, places)
