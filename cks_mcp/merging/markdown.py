"""What a line of Markdown is, as far as the warnings ask: bullets, headings, table rows, fences, front matter."""

import re

_BULLET = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?(.*)", re.DOTALL)
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?\s*$")
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)", re.MULTILINE)
_DELIMITER = re.compile(r"\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
_KEY = re.compile(r"([^\s#:\-][^:\n]*?)\s*:(?:\s|$)")
_WORD = re.compile(r"[^\W_]+")
_CELL_BAR = re.compile(r"(?<!\\)\|")
_ENDINGS = (("ies", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""))
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been by can do does for from has have in is it its may must not of on or our "
        "shall should so that the their then there these this to was we were when will with",
    )
)
CJK = "\u2e80"
"""From here on scripts are written without spaces, so pairs of characters stand for words."""


def bullet_text(line: str) -> str | None:
    """The text of a list item without its mark and check box, or None."""
    found = _BULLET.match(line)
    return found[1].strip() if found else None


def heading(line: str) -> tuple[int, str] | None:
    """Level and folded text of an ATX heading, or None."""
    found = _HEADING.match(line)
    return (len(found[1]), folded(found[2])) if found and found[2] else None


def is_row(line: str) -> bool:
    """Whether this is a table row that begins with a bar."""
    return line.lstrip().startswith("|")


def is_delimiter(line: str) -> bool:
    """Whether this is the row of dashes under a table's head."""
    return "-" in line and "|" in line and _DELIMITER.match(line) is not None


def cells(line: str) -> list[str]:
    """The cells of a table row; an escaped bar does not end one."""
    parts = _CELL_BAR.split(line.strip())
    return [part.strip() for part in parts[1 : -1 if not parts[-1] else None]]


def folded(text: str) -> str:
    """Words in lower case with single spaces: how alike texts are compared."""
    return " ".join(_WORD.findall(text.casefold()))


def words(text: str) -> frozenset[str]:
    """The words that carry meaning, cut to their stems; for scripts without spaces pairs of characters."""
    found: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        if word[0] >= CJK:
            found.update(word[k : k + 2] for k in range(max(1, len(word) - 1)))
        elif word not in _STOP_WORDS:
            found.add(_stem(word))
    return frozenset(found)


def _stem(word: str) -> str:
    for ending, instead in _ENDINGS:
        if len(word) >= len(ending) + 3 and word.endswith(ending):
            return word[: -len(ending)] + instead
    return word


def fences(text: str) -> tuple[list[tuple[int, int]], int]:
    """Fenced code as line ranges (fences included), and the line that opens one that nothing closes, or -1."""
    ranges: list[tuple[int, int]] = []
    opened, mark = -1, ""
    number = last = 0
    for found in _FENCE.finditer(text) if "```" in text or "~~~" in text else ():
        number += text.count("\n", last, found.start())
        last = found.start()
        run, rest = found[1], found[2]
        if opened < 0:
            if run[0] == "~" or "`" not in rest:
                opened, mark = number, run
        elif run[0] == mark[0] and len(run) >= len(mark) and not rest.strip():
            ranges.append((opened, number + 1))
            opened = -1
    return ranges, opened


def front_matter(text: str) -> dict[str, str]:
    """The top-level keys of a front-matter block and the text each holds; empty where there is none."""
    if not text.startswith(("---\n", "---\r\n")):
        return {}
    held: dict[str, str] = {}
    key = ""
    for line in text[text.index("\n") + 1 :].split("\n"):
        if line.rstrip() in ("---", "..."):
            return held
        found = _KEY.match(line)
        if found:
            key = found[1]
        if key:
            held[key] = held.get(key, "") + line.rstrip() + "\n"
    return {}
