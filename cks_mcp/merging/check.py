"""What must hold of a merge before it is answered: no inserted line lost, none invented, kept lines kept.

Every line of the result is a base line that both sides kept, or stands in a chunk that was taken whole from
a side. So with hunks that are true (`explains`) no inserted line can be lost and none invented. What is left
to check is that equal lines at several places do not cancel out: where both sides insert the same line at one
place it is taken once, while each may have removed another copy elsewhere.
"""

from collections import Counter

from cks_mcp.merging.diff import Hunk
from cks_mcp.merging.diff3 import Chunk, Texts, joined, sides

ROUNDS = 8
"""Times that chunks are joined one by one before all that hold a lost line become one."""


def explains(a: list[int], b: list[int], hunks: list[Hunk]) -> bool:
    """Whether the hunks turn `a` into `b`, line by line; lines that `a` lacks stand in hunks."""
    built: list[int] = []
    end = 0
    for a0, a1, b0, b1 in hunks:
        built += a[end:a0]
        if len(built) != b0:
            return False
        built += b[b0:b1]
        end = a1
    built += a[end:]
    return built == b


def sound(texts: Texts, chunks: list[Chunk]) -> list[Chunk]:
    """The chunks, with as many of them joined to conflicts as it takes that no kept line is missing."""
    for _ in range(ROUNDS):
        missing = _missing(texts, chunks)
        if missing is None:
            return chunks
        first, last = _cancelling(texts, chunks, missing)
        chunks = [*chunks[:first], joined(texts, chunks[first : last + 1]), *chunks[last + 1 :]]
    return chunks if _missing(texts, chunks) is None else [joined(texts, chunks)]


def _missing(texts: Texts, chunks: list[Chunk]) -> str | None:
    """A line that no side has fewer times than the base, but the result has.

    The result gains what ours gains and what theirs gains, less what both gain at one place.
    """
    shared = _gained_by_both(texts, chunks)
    doubled = [line for line, times in shared.items() if times > 0]
    if not doubled:
        return None
    base, ours, theirs = map(Counter, texts)
    gains = ((line, ours[line] - base[line], theirs[line] - base[line]) for line in doubled)
    return min((line for line, o, t in gains if o >= 0 <= t and o + t < shared[line]), default=None)


def _gained_by_both(texts: Texts, chunks: list[Chunk]) -> Counter[str]:
    """By line: how often both sides have it in one chunk, less how often the base has it there."""
    shared: list[str] = []
    removed: list[str] = []
    for chunk in chunks:
        if chunk.kind == "same" or chunk.kind == "conflict":
            ours, theirs = sides(texts, chunk)
            removed += texts.base[chunk.b0 : chunk.b1]
            if chunk.kind == "same":
                shared += ours
            elif not set(ours).isdisjoint(theirs):
                shared += (Counter(ours) & Counter(theirs)).elements()
    both = Counter(shared)
    both.subtract(Counter(removed))
    return both


def _cancelling(texts: Texts, chunks: list[Chunk], line: str) -> tuple[int, int]:
    """The nearest chunks of which one inserts the line from both sides and one removes it from a side."""
    doubled: list[int] = []
    removing: list[int] = []
    for k, chunk in enumerate(chunks):
        base = texts.base[chunk.b0 : chunk.b1].count(line)
        ours, theirs = (lines.count(line) - base for lines in sides(texts, chunk))
        if min(ours, theirs) > 0:
            doubled.append(k)
        elif min(ours, theirs) < 0:
            removing.append(k)
    k, other = min(
        ((k, other) for k in doubled for other in removing), key=lambda pair: abs(pair[0] - pair[1])
    )
    return min(k, other), max(k, other)
