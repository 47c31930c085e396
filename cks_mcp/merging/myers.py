"""Myers' greedy comparison with a bound on the edits looked ahead: time and memory grow with the input only.

E. W. Myers, "An O(ND) Difference Algorithm and Its Variations", Algorithmica 1 (1986). Within the bound the
answer is a longest common subsequence; beyond it the path that came furthest is taken and the search goes on
from there, so the answer is still a common subsequence, only not always a longest one.
"""

from array import array
from collections.abc import MutableSequence
from itertools import compress, count
from operator import ne

Places = MutableSequence[int]
Pairs = tuple[Places, Places]
Snake = tuple[int, int, int]

AHEAD_MIN, AHEAD_MAX = 16, 512
STEPS, STEPS_PER_LINE, STEPS_PER_SEARCH = 400_000, 1, 20
LONG = 12
"""Equal lines in a row from which on comparing slices is cheaper than comparing lines."""


class Budget:
    """Steps that the searches of one diff may still take together: with none left, gaps stay as they are."""

    def __init__(self, lines: int) -> None:
        self.left = STEPS + STEPS_PER_LINE * lines


def common_pairs(a: list[int], b: list[int], budget: Budget) -> Pairs:
    """Positions in `a` and in `b` of a common subsequence, both increasing."""
    ahead_max = max(AHEAD_MIN, min(AHEAD_MAX, budget.left // (len(a) + len(b) + 1)))
    ahead = ahead_max
    x = y = 0
    at_a, at_b = array("q"), array("q")  # there may be a million of them
    while x < len(a) and y < len(b) and budget.left > 0:
        snakes, edits, x, y = _furthest(a, b, x, y, ahead)
        budget.left -= edits * (edits + 1) // 2 + STEPS_PER_SEARCH
        matched = 0
        for start_a, start_b, length in reversed(snakes):
            at_a.extend(range(start_a, start_a + length))
            at_b.extend(range(start_b, start_b + length))
            matched += length
        # A stretch with few matches is not worth the square of the look-ahead.
        ahead = max(4, ahead // 2) if matched * 4 < ahead else min(ahead_max, ahead * 2)
    return at_a, at_b


def _furthest(a: list[int], b: list[int], x0: int, y0: int, ahead: int) -> tuple[list[Snake], int, int, int]:
    """Follow the best paths from (x0, y0) for at most `ahead` edits.

    Returns the matching runs of the path that came furthest (last run first), its edits and its end.
    """
    x_end, y_end = len(a), len(b)
    width, height = x_end - x0, y_end - y0
    shift = x0 - y0
    middle = ahead + 1
    reach = [x0] * (2 * middle + 1)  # by diagonal k = x - y - shift: the furthest x
    reach[middle] += equal_run(a, b, x0, y0, min(width, height))
    trace = [[reach[middle]]]
    best, best_k = 2 * reach[middle] - shift, 0
    for edits in range(1, ahead + 1):
        if best == x_end + y_end:
            break
        best = -1
        low = edits if edits <= height else 2 * height - edits
        high = edits if edits <= width else 2 * width - edits
        for k in range(-low, high + 1, 2):
            left, right = reach[middle + k - 1], reach[middle + k + 1]
            x = right if k == -edits or (k != edits and left < right) else left + 1
            y = x - k - shift
            long = x + LONG
            while x < x_end and y < y_end and a[x] == b[y]:
                x, y = x + 1, y + 1
                if x == long:
                    run = equal_run(a, b, x, y, min(x_end - x, y_end - y))
                    x, y = x + run, y + run
                    break
            reach[middle + k] = x
            if x + y > best and x <= x_end and y <= y_end:
                best, best_k = x + y, k
        trace.append(reach[middle - edits : middle + edits + 1])
    return _path(trace, best_k, x0, y0)


def equal_run(a: list[int], b: list[int], x: int, y: int, limit: int) -> int:
    """How many lines, at most `limit`, are equal from these places on."""
    length, step = 0, 16
    while length < limit:
        step = min(step, limit - length)
        part_a = a[x + length : x + length + step]
        part_b = b[y + length : y + length + step]
        if part_a != part_b:
            return length + next(compress(count(), map(ne, part_a, part_b)))
        length += step
        step *= 4
    return length


def equal_tail(a: list[int], b: list[int], x: int, y: int, limit: int) -> int:
    """How many lines, at most `limit`, are equal just before these places."""
    length, step = 0, 4
    while length < limit:
        step = min(step, limit - length)
        part_a = a[x - length - step : x - length]
        part_b = b[y - length - step : y - length]
        if part_a != part_b:
            return length + next(compress(count(), map(ne, reversed(part_a), reversed(part_b))))
        length += step
        step *= 4
    return length


def _path(trace: list[list[int]], k: int, x0: int, y0: int) -> tuple[list[Snake], int, int, int]:
    """Walk back from diagonal `k` of the last row of `trace`, choosing as `_furthest` chose."""
    shift = x0 - y0
    snakes: list[Snake] = []
    x = trace[-1][len(trace) - 1 + k]
    end_x, end_y = x, x - k - shift
    for edits in range(len(trace) - 1, 0, -1):
        before = trace[edits - 1]
        at = k + edits - 1  # where diagonal k stands in `before`
        if k == -edits or (k != edits and before[at - 1] < before[at + 1]):
            start, step = before[at + 1], 1
        else:
            start, step = before[at - 1] + 1, -1
        if x > start:
            snakes.append((start, start - k - shift, x - start))
        x, k = before[at + step], k + step
    if x > x0:
        snakes.append((x0, y0, x - x0))
    return snakes, len(trace) - 1, end_x, end_y
