"""What a line of Markdown is, as far as the warnings ask: bullets, headings, table rows, fences, front matter.

Lines can be very long, so nothing here takes more time than grows with the length of the line.
"""

import re

_BULLET = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?(.*)", re.DOTALL)
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)", re.MULTILINE)
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
BULLET_MAX = 2_000
"""Characters of a line that are compared by words."""
CJK = "\u2e80"
"""From here on scripts are written without spaces, so pairs of characters stand for words."""


def bullet_text(line: str) -> str | None:
    """The text of a list item without its mark and check box, or None."""
    found = _BULLET.match(line)
    return found[1].strip() if found else None


def heading(line: str) -> tuple[int, str] | None:
    """Level and folded text of an ATX heading, or None."""
    marked = line.lstrip(" ")
    text = marked.lstrip("#")
    level = len(marked) - len(text)
    if not 1 <= level <= 6 or len(line) - len(marked) > 3 or not text.startswith((" ", "\t")):
        return None
    words_of_it = folded(text[:BULLET_MAX])
    return (level, words_of_it) if words_of_it else None


def is_row(line: str) -> bool:
    """Whether this is a table row that begins with a bar."""
    return line.lstrip().startswith("|")


def is_delimiter(line: str) -> bool:
    """Whether this is the row of dashes under a table's head."""
    if "-" not in line or "|" not in line:
        return False
    dashes = [cell.strip().removeprefix(":").removesuffix(":") for cell in line.strip().strip("|").split("|")]
    return all(cell and not cell.strip("-") for cell in dashes)


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
    for word in _WORD.findall(text[:BULLET_MAX].casefold()):
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


def may_have_fences(text: str) -> bool:
    """Whether to look closer; single characters are found much faster than three."""
    return ("`" in text and "```" in text) or ("~" in text and "~~~" in text)


def fences(text: str) -> tuple[list[tuple[int, int]], int]:
    """Fenced code as line ranges (fences included), and the line that opens one that nothing closes, or -1."""
    ranges: list[tuple[int, int]] = []
    opened, mark = -1, ""
    number = last = 0
    for found in _FENCE.finditer(text) if may_have_fences(text) else ():
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


def key_of(line: str) -> str:
    """The key that a line of front matter begins with at the top level, or nothing."""
    key, colon, rest = line.partition(":")
    if not colon or key[:1] in " \t#-" or (rest and not rest[0].isspace()):
        return ""
    return key.rstrip()


def front_matter(text: str) -> dict[str, str]:
    """The top-level keys of a front-matter block and the text each holds; empty where there is none."""
    if not text.startswith(("---\n", "---\r\n")):
        return {}
    held: dict[str, list[str]] = {}
    key = ""
    for line in text[text.index("\n") + 1 :].split("\n"):
        if line.rstrip() in ("---", "..."):
            return {key: "\n".join(lines) for key, lines in held.items()}
        key = key_of(line) or key
        if key:
            held.setdefault(key, []).append(line.rstrip())
    return {}
