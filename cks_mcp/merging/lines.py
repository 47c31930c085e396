"""Lines of a text: cut at LF only, joined again byte for byte, and shared ends of three texts cut off.

A line is held without its LF. The last line of a text that does not end with LF is *open* and is held
with one, so that it never equals a line that was ended: no other line can contain an LF.
"""

from typing import NamedTuple

TAIL_MARGIN = 64
"""Lines of the shared tail that stay in the window, so that an edit can slide down into them."""


class Window(NamedTuple):
    """What three texts share: so many characters at the head and at the tail, on line boundaries."""

    head: int
    tail: int

    def cut(self, text: str) -> str:
        return text[self.head : len(text) - self.tail]


def split(text: str) -> list[str]:
    """The lines of `text`; CR, NEL, VT, FF and U+2028 are content."""
    lines = text.split("\n")
    last = lines.pop()
    if last:
        lines.append(last + "\n")
    return lines


def join(lines: list[str]) -> str:
    """The text of these lines; only the last one may be open."""
    if not lines:
        return ""
    text = "\n".join(lines)
    return text[:-1] if is_open(lines[-1]) else text + "\n"


def is_open(line: str) -> bool:
    """Whether this is a last line without a line end."""
    return line.endswith("\n")


def closed(line: str) -> str:
    """The same line with its line end."""
    return line[:-1] if is_open(line) else line


def window(base: str, ours: str, theirs: str) -> Window:
    """Head and tail that all three texts share, less a margin at the tail."""
    head = min(_common_head(base, ours), _common_head(base, theirs))
    head = base.rfind("\n", 0, head) + 1
    room = min(len(base), len(ours), len(theirs)) - head
    tail = min(_common_tail(base, ours, room), _common_tail(base, theirs, room))
    start = len(base) - tail
    for _ in range(TAIL_MARGIN + 1):  # the first LF only ends the line that the tail begins in
        start = base.find("\n", start) + 1
        if start == 0:
            return Window(head, 0)
    return Window(head, len(base) - start)


def _common_head(a: str, b: str) -> int:
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _common_tail(a: str, b: str, room: int) -> int:
    low, high = 0, room
    if a[len(a) - room :] == b[len(b) - room :]:
        return room
    while high - low > 1:
        middle = (low + high) // 2
        if a[len(a) - middle : len(a) - low] == b[len(b) - middle : len(b) - low]:
            low = middle
        else:
            high = middle
    return low
