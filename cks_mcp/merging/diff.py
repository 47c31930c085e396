"""Which lines of one text became which lines of another: patience anchors, then bounded Myers in the gaps.

Everything here works on line numbers (`intern`). Anchors are pairs of lines that surely belong together:
lines, or blocks of lines, that occur once in both texts (B. Cohen's patience diff). `_cut` walks along equal
lines and leaves a gap wherever they end before the next anchor. A gap is cut by anchors of its own at most
`LEVELS` times, then Myers answers; so no input costs more than that.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from itertools import compress, count, islice, repeat
from operator import ge, ne

from cks_mcp.merging.myers import Budget, Pairs, common_pairs, equal_run, equal_tail

Hunk = tuple[int, int, int, int]
"""Lines a0 to a1 of one text became lines b0 to b1 of the other (0-based, ends excluded)."""

Gap = tuple[int, int, int, int, int]
"""A hunk yet to be looked into, and how often it has been cut out of a larger one."""

ABSENT = -1
LEVELS = 3
SMALL = 256
"""Lines of both sides up to which a gap goes to Myers at once: there it finds the best answer."""
BLOCKS = (32, 8)
"""Lines of the blocks that serve as anchors where single lines repeat, by level."""
CHARS = 0x110000
SHARED_MIN = 4
"""Equal lines that are worth a place of their own between two differences; git's merge uses the same number."""
HUNKS_MAX = 100_000
"""Hunks from which on equal lines between them have to be worth it: only so memory stays in bounds."""
STEP = 16
"""Equal lines in a row that are looked at one by one before slices are compared."""


def intern(base: list[str], *sides: list[str]) -> list[list[int]]:
    """Number the lines of all texts: a line's number is the place of the first equal line in `base`.

    A line that `base` does not have is ABSENT.
    """
    first = dict(zip(reversed(base), range(len(base) - 1, -1, -1), strict=True))
    return [list(map(first.get, lines, repeat(ABSENT))) for lines in (base, *sides)]


def diff(a: list[int], b: list[int], budget: Budget) -> list[Hunk]:
    """The hunks that turn `a` into `b`, in order, never touching; both are numbered with `a` as base."""
    once = [1] * len(a) + [0]  # the last stands for ABSENT
    for repeated in set(compress(a, map(ne, a, count()))):
        once[repeated] = 0
    hunks: list[Hunk] = []
    work: list[Gap] = []
    chosen = list(map(once.__getitem__, b))
    anchors = _in_order(list(compress(b, chosen)), list(compress(range(len(b)), chosen)))
    _cut(a, b, (0, len(a), 0, len(b), 0), anchors, hunks, work)
    while work:
        _solve(a, b, work.pop(), hunks, work, budget)
    hunks.sort()
    if len(hunks) > HUNKS_MAX:
        hunks = coarser(hunks)
    return _slid_down(a, b, hunks)


def coarser(hunks: list[Hunk]) -> list[Hunk]:
    """The hunks, those with less than SHARED_MIN equal lines between them taken together."""
    spans = hunks[:1]
    for a0, a1, b0, b1 in hunks[1:]:
        if a0 - spans[-1][1] < SHARED_MIN:
            spans[-1] = (spans[-1][0], a1, spans[-1][2], b1)
        else:
            spans.append((a0, a1, b0, b1))
    return spans


def _cut(
    a: list[int], b: list[int], gap: Gap, anchors: Pairs, hunks: list[Hunk], work: list[Gap] | None
) -> None:
    """Cut the gap at equal lines. What lies between is new work; without `work` it is a hunk."""
    x, a1, y, b1, level = gap
    at_a, at_b = anchors
    at_a.append(a1)
    at_b.append(b1)
    k = 0
    while True:
        run = 0
        for one, other in zip(a[x : x + STEP], b[y : y + STEP], strict=False):
            if one != other:
                break
            run += 1
        if run == STEP or run > a1 - x or run > b1 - y:
            run = equal_run(a, b, x, y, min(a1 - x, b1 - y))
        x, y = x + run, y + run
        if x == a1 and y == b1:
            return
        k = bisect_left(at_b, y, k, min(k + run + 1, len(at_b)))
        while at_a[k] < x:
            k += 1
        x_next, y_next = x_end, y_end = at_a[k], at_b[k]
        least = max(x, x_end - STEP)
        while x_end > least and y_end > y and a[x_end - 1] == b[y_end - 1]:
            x_end, y_end = x_end - 1, y_end - 1
        if x == x_end or y == y_end or work is None or x_end - x == 1 == y_end - y:
            hunks.append((x, x_end, y, y_end))
        else:
            work.append((x, x_end, y, y_end, level + 1))
        x, y = x_next, y_next


def _solve(a: list[int], b: list[int], gap: Gap, hunks: list[Hunk], work: list[Gap], budget: Budget) -> None:
    a0, a1, b0, b1, level = gap
    tail = equal_tail(a, b, a1, b1, min(a1 - a0, b1 - b0))
    a1, b1 = a1 - tail, b1 - tail
    part_a, part_b = a[a0:a1], b[b0:b1]
    known = set(part_a).intersection(part_b)
    if not known:
        hunks.append((a0, a1, b0, b1))
        return
    gap = a0, a1, b0, b1, level
    if level < LEVELS and len(part_a) + len(part_b) > SMALL:
        at_a, at_b = _anchors(part_a, part_b, level)
        if at_a:
            _cut(a, b, gap, ([x + a0 for x in at_a], [y + b0 for y in at_b]), hunks, work)
            return
    # Lines the other side does not have cannot match; without them Myers has few edits to look at.
    left = array("q", compress(range(a0, a1), map(known.__contains__, part_a)))
    right = array("q", compress(range(b0, b1), map(known.__contains__, part_b)))
    few_a, few_b = [a[i] for i in left], [b[j] for j in right]
    if few_a != few_b:
        at_a, at_b = common_pairs(few_a, few_b, budget)
        left, right = array("q", map(left.__getitem__, at_a)), array("q", map(right.__getitem__, at_b))
    _cut(a, b, gap, (left, right), hunks, None)


def _anchors(a: list[int], b: list[int], level: int) -> Pairs:
    """Places in two gaps of lines, or where these repeat of blocks of lines, that occur once in both."""
    in_a, in_b = Counter(a), Counter(b)
    once = {line for line, times in in_a.items() if times == 1 == in_b[line]}
    if once:
        place = dict(zip(a, count()))
        at_b = list(compress(range(len(b)), map(once.__contains__, b)))
        return _in_order([place[b[j]] for j in at_b], at_b)
    if min(len(a), len(b)) > SMALL:
        return _blocks(a, b, BLOCKS[min(level, len(BLOCKS)) - 1])
    return [], []


def _blocks(a: list[int], b: list[int], size: int) -> Pairs:
    """The first and last lines of blocks: each run of `size` lines of `b` is looked for among the blocks of `a`.

    Lines are written as characters, because slices of a string are the cheapest keys.
    """
    if max(max(a), max(b)) + 1 >= CHARS:
        return [], []
    text_a, text_b = ("".join(map(chr, map((1).__add__, lines))) for lines in (a, b))
    place: dict[str, int] = {}
    for i in range(0, len(a) - size + 1, size):
        block = text_a[i : i + size]
        place[block] = ABSENT if block in place else i
    found = [place.get(text_b[j : j + size], ABSENT) for j in range(len(b) - size + 1)]
    hits = [j for j, i in enumerate(found) if i != ABSENT]
    at_a: list[int] = []
    at_b: list[int] = []
    for i, j in zip(*_in_order([found[j] for j in hits], hits), strict=True):
        if not at_b or j > at_b[-1]:
            at_a += i, i + size - 1
            at_b += j, j + size - 1
    return at_a, at_b


def _in_order(at_a: list[int], at_b: list[int]) -> Pairs:
    """The longest part of the pairs in which `at_a` rises as `at_b` does; a place named twice is left out."""
    if not any(map(ge, at_a, islice(at_a, 1, None))):
        return at_a, at_b
    times = Counter(at_a)
    tops: list[int] = []  # of all rising runs of n + 1 pairs: the least end
    ends: list[int] = []
    before: list[int] = []
    for index, place in enumerate(at_a):
        if times[place] > 1:
            before.append(-1)
            continue
        rank = len(tops) if not tops or place > tops[-1] else bisect_left(tops, place)
        before.append(ends[rank - 1] if rank else -1)
        tops[rank : rank + 1] = [place]
        ends[rank : rank + 1] = [index]
    chain: list[int] = []
    index = ends[-1] if ends else -1
    while index >= 0:
        chain.append(index)
        index = before[index]
    chain.reverse()
    return [at_a[index] for index in chain], [at_b[index] for index in chain]


def _slid_down(a: list[int], b: list[int], hunks: list[Hunk]) -> list[Hunk]:
    """Move pure insertions and deletions as far down as equal lines allow; hunks that meet become one.

    So both sides of a merge place the same edit alike.
    """
    done: list[Hunk] = []
    next_a, next_b = len(a), len(b)
    for a0, a1, b0, b1 in reversed(hunks):
        while True:
            if a0 == a1:
                while b1 < next_b and b[b0] == b[b1]:
                    a0, a1, b0, b1 = a0 + 1, a1 + 1, b0 + 1, b1 + 1
            elif b0 == b1:
                while a1 < next_a and a[a0] == a[a1]:
                    a0, a1, b0, b1 = a0 + 1, a1 + 1, b0 + 1, b1 + 1
            if not done or a1 != next_a:
                break
            _, a1, _, b1 = done.pop()
            next_a, next_b = (done[-1][0], done[-1][2]) if done else (len(a), len(b))
        done.append((a0, a1, b0, b1))
        next_a, next_b = a0, b0
    done.reverse()
    return done
