"""Three-way merge of lines: the hunks of both sides become chunks, each taken from one side or in conflict.

The scheme is that of S. Khanna, K. Kunal, B. C. Pierce, "A Formal Investigation of Diff3" (2007), but hunks that
only touch, sharing no base line, do not conflict: both are kept in the order of the base.
"""

from typing import Literal, NamedTuple

from cks_mcp.merging.diff import SHARED_MIN, Hunk, coarser, diff, intern
from cks_mcp.merging.lines import closed, is_open
from cks_mcp.merging.myers import Budget


class Texts(NamedTuple):
    """The lines of base, ours and theirs."""

    base: list[str]
    ours: list[str]
    theirs: list[str]


class Chunk(NamedTuple):
    """A place where a side differs from the base: line ranges in the three texts, ends excluded."""

    kind: Literal["ours", "theirs", "same", "conflict"]
    b0: int
    b1: int
    o0: int
    o1: int
    t0: int
    t1: int


class Block(NamedTuple):
    """The two sides of one conflict: their lines and the places where these begin."""

    ours: list[str]
    theirs: list[str]
    o0: int
    t0: int


def chunks_of(texts: Texts, ours: list[Hunk], theirs: list[Hunk]) -> list[Chunk]:
    """Chunks in order: hunks of both sides that change the same base lines or insert at one place are one."""
    size = len(texts.base)
    stop: Hunk = (size + 2, size + 2, 0, 0)
    mine_all = iter([*_holding_the_end(texts.ours, ours, size), stop])
    other_all = iter([*_holding_the_end(texts.theirs, theirs, size), stop])
    mine, other = next(mine_all), next(other_all)
    chunks: list[Chunk] = []
    o_shift = t_shift = 0  # of the lines that follow, against the base
    while mine is not stop or other is not stop:
        if mine[1] <= other[0] and mine[0] < other[1]:
            b0, b1, o0, o1 = mine
            b1 = min(b1, size)
            chunks.append(Chunk("ours", b0, b1, o0, o1, b0 + t_shift, b1 + t_shift))
            o_shift = o1 - b1
            mine = next(mine_all)
        elif other[1] <= mine[0] and other[0] < mine[1]:
            b0, b1, t0, t1 = other
            b1 = min(b1, size)
            chunks.append(Chunk("theirs", b0, b1, b0 + o_shift, b1 + o_shift, t0, t1))
            t_shift = t1 - b1
            other = next(other_all)
        else:
            b0, b1 = min(mine[0], other[0]), max(mine[1], other[1])
            o0, t0 = b0 + o_shift, b0 + t_shift
            o_shift, mine = mine[3] - min(mine[1], size), next(mine_all)
            t_shift, other = other[3] - min(other[1], size), next(other_all)
            while mine[0] < b1 or other[0] < b1:
                if mine[0] < b1:
                    b1, o_shift, mine = max(b1, mine[1]), mine[3] - min(mine[1], size), next(mine_all)
                if other[0] < b1:
                    b1, t_shift, other = max(b1, other[1]), other[3] - min(other[1], size), next(other_all)
            b1 = min(b1, size)
            chunks.append(judged(texts, (b0, b1, o0, b1 + o_shift, t0, b1 + t_shift)))
    return _near_conflicts_joined(texts, chunks)


def _near_conflicts_joined(texts: Texts, chunks: list[Chunk]) -> list[Chunk]:
    """Conflicts with nothing but a few kept lines between them are one: the markers would be longer than those."""
    kept: list[Chunk] = []
    near: list[Chunk] = []
    for chunk in [*chunks, None]:
        if near and (chunk is None or chunk.kind != "conflict" or chunk.b0 - near[-1].b1 >= SHARED_MIN):
            kept.append(joined(texts, near) if len(near) > 1 else near[0])
            near = []
        if chunk is not None:
            (near if chunk.kind == "conflict" else kept).append(chunk)
    return kept


def _holding_the_end(side: list[str], hunks: list[Hunk], size: int) -> list[Hunk]:
    """Hunks of a side; one that rewrites the end of the text to an open line also covers what follows it.

    So nothing that the other side puts there can be joined to the open line.
    """
    if hunks and side and is_open(side[-1]):
        b0, b1, s0, s1 = hunks[-1]
        if b0 < b1 == size and s0 < s1 == len(side):
            return [*hunks[:-1], (b0, size + 1, s0, s1)]
    return hunks


def judged(texts: Texts, ranges: tuple[int, int, int, int, int, int]) -> Chunk:
    """The chunk with these ranges, of the kind its lines call for."""
    chunk = Chunk("conflict", *ranges)
    ours, theirs = sides(texts, chunk)
    base = texts.base[chunk.b0 : chunk.b1]
    if ours == theirs:
        return Chunk("same", *ranges)
    if theirs == base:
        return Chunk("ours", *ranges)
    if ours == base:
        return Chunk("theirs", *ranges)
    return chunk


def joined(texts: Texts, chunks: list[Chunk]) -> Chunk:
    """One chunk from the first to the last of these, with all that stands between them."""
    first, last = chunks[0], chunks[-1]
    return judged(texts, (first.b0, last.b1, first.o0, last.o1, first.t0, last.t1))


def sides(texts: Texts, chunk: Chunk) -> tuple[list[str], list[str]]:
    """The lines of ours and of theirs; where their last lines differ only in that one is open, it is ended."""
    ours, theirs = texts.ours[chunk.o0 : chunk.o1], texts.theirs[chunk.t0 : chunk.t1]
    if ours and theirs and is_open(ours[-1]) != is_open(theirs[-1]):
        left_open, ended = (ours, theirs) if is_open(ours[-1]) else (theirs, ours)
        if ended[-1] in (closed(left_open[-1]), closed(left_open[-1]) + "\r"):
            left_open[-1] = ended[-1]
    return ours, theirs


def parts_of(texts: Texts, chunk: Chunk, end: str, budget: Budget) -> list[list[str] | Block]:
    """A conflict as lines both sides share and blocks in which they differ at the head and at the tail.

    An open line in a block is ended with `end` and LF, for the marker that follows.
    """
    ours, theirs = sides(texts, chunk)
    if not (ours and theirs and ours[-1] == theirs[-1]):
        ours, theirs = (
            [*side[:-1], *(closed(x) + end if is_open(x) else x for x in side[-1:])]
            for side in (ours, theirs)
        )
    if min(len(ours), len(theirs)) <= SHARED_MIN or set(ours).isdisjoint(theirs):
        spans = [(0, len(ours), 0, len(theirs))]
    elif (len(ours), ours) <= (len(theirs), theirs):  # compared in one order, so that sides can be swapped
        spans = _blocks(ours, theirs, budget)
    else:
        spans = [(o0, o1, t0, t1) for t0, t1, o0, o1 in _blocks(theirs, ours, budget)]
    parts: list[list[str] | Block] = []
    done = 0
    for o0, o1, t0, t1 in spans:
        while o0 < o1 and t0 < t1 and ours[o0] == theirs[t0]:
            o0, t0 = o0 + 1, t0 + 1
        while o0 < o1 and t0 < t1 and ours[o1 - 1] == theirs[t1 - 1]:
            o1, t1 = o1 - 1, t1 - 1
        if done < o0:
            parts.append(ours[done:o0])
        parts.append(Block(ours[o0:o1], theirs[t0:t1], chunk.o0 + o0, chunk.t0 + t0))
        done = o1
    if done < len(ours):
        parts.append(ours[done:])
    return parts


def _blocks(a: list[str], b: list[str], budget: Budget) -> list[Hunk]:
    """Where `a` and `b` differ, few equal lines between differences not counted."""
    in_a, in_b = intern(a, b)
    return coarser(diff(in_a, in_b, budget))
