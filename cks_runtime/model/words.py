"""Words for full text: what an object is found by, in any script, and the snippet that shows why."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from cks_runtime.model.canon import Json
from cks_runtime.model.knowledge import KObject

TEXT_MAX = 20_000  # characters of one object that are indexed
SNIPPET_CHARS = 160

# scripts written without spaces: each character is a word, and a run of them a phrase
_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Myanmar, Khmer
    "\u2e80-\u303f\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"  # CJK, kana
    "\U00020000-\U0003ffff"
)
_ONE_UNSPACED = re.compile(rf"([{_UNSPACED}])")


def object_text(obj: KObject) -> str:
    """Name, id, type and every text and number in the structure, ready for the index."""
    parts = [obj.name, obj.id, obj.type, *_leaves(dict(obj.structure))]
    return index_text(" \n".join(parts)[:TEXT_MAX])


def index_text(text: str) -> str:
    """Folded text with a space around each character of a script that is written without spaces."""
    return _ONE_UNSPACED.sub(r" \1 ", folded(text))


def folded(text: str) -> str:
    """Without case and, in scripts that are written with spaces, without accents: `Größe` is `grosse`."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    kept = (c for c in plain if not unicodedata.combining(c) or _ONE_UNSPACED.match(c))
    return unicodedata.normalize("NFC", "".join(kept))


def query_words(query: str) -> list[str]:
    """The words of a query as written; a run of an unspaced script is one word, and marks belong to their letters."""
    words: list[str] = []
    last = ""
    for char in unicodedata.normalize("NFKC", query):
        if unicodedata.category(char).startswith("M"):
            sort = last
        else:
            sort = "unspaced" if _ONE_UNSPACED.match(char) else "spaced" if char.isalnum() else ""
        if sort and sort == last:
            words[-1] += char
        elif sort:
            words.append(char)
        last = sort
    return words


def match_expression(words: list[str], every: bool) -> str:
    """An FTS5 expression: `every` word must occur (or any), the last as a prefix; unspaced runs are phrases."""
    terms = []
    for position, word in enumerate(words):
        phrase = " ".join(index_text(word).split())
        last = position == len(words) - 1 and not _ONE_UNSPACED.search(word)
        terms.append(f'"{phrase}"' + ("*" if last else ""))
    return (" AND " if every else " OR ").join(terms)


def snippet(obj: KObject, words: list[str]) -> str:
    """The part of the object's text around the first match, matches in `**`."""
    text = unicodedata.normalize("NFKC", " · ".join(_leaves(dict(obj.structure)))) or obj.name
    pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    found = re.search(pattern, text, re.IGNORECASE)
    start = max(0, found.start() - SNIPPET_CHARS // 3) if found else 0
    cut = text[start : start + SNIPPET_CHARS]
    shown = re.sub(f"({pattern})", r"**\1**", cut, flags=re.IGNORECASE)
    return ("…" if start else "") + shown + ("…" if start + SNIPPET_CHARS < len(text) else "")


def _leaves(value: Json) -> Iterator[str]:
    match value:
        case str():
            yield value
        case bool() | None:
            return
        case int() | float():
            yield str(value)
        case list():
            for item in value:
                yield from _leaves(item)
        case dict():
            for key, item in value.items():
                if key not in ("signature", "subject_hash", "key_id"):
                    yield from _leaves(item)
