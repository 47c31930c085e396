"""Documents as values: their paths, numbered versions chained by hash, and what a write makes of the head."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn

from cks_runtime.model.canon import Hash, content_id
from cks_runtime.model.errors import InvalidParameter, TooLarge

PATH_BYTES_MAX = 1024
BODY_BYTES_MAX = 1 << 20
AUTHOR_LENGTH_MAX = 300

_VERSION = re.compile(r"v([1-9][0-9]*)", re.ASCII)
_LIKE_VERSION = re.compile(r"v\d+")  # any script's digits: a look-alike of a version is no name either
_ENCODED = re.compile(r"%(?:2e|2f|5c|00)", re.IGNORECASE)
_DIGITS_MAX = 18  # no document has a version of more digits, and these fit 64 bits


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """One version of the document at `path`. An archived one is a marker: its `content` is that of the last body.

    `hash` is `chain_hash` of the rest as it was when the version was stored; `previous` is None for version 1.
    """

    path: str
    version: int
    previous: Hash | None
    content: Hash
    author: str
    at_ms: int
    archived: bool
    hash: Hash


def chain_hash(
    path: str, version: int, previous: Hash | None, content: Hash, author: str, at_ms: int, archived: bool
) -> Hash:
    """The hash that stands for a version and, through `previous`, for every one before it."""
    return content_id(
        {
            "archived": archived,
            "author": author,
            "content": content.hex(),
            "path": path,
            "previous": None if previous is None else previous.hex(),
            "time": at_ms,
            "version": version,
        }
    )


def next_version(
    path: str, head: DocumentVersion | None, content: Hash, author: str, at_ms: int, archived: bool = False
) -> DocumentVersion:
    """The version that follows `head`, or the first one."""
    version = 1 if head is None else head.version + 1
    previous = None if head is None else head.hash
    named = chain_hash(path, version, previous, content, author, at_ms, archived)
    return DocumentVersion(path, version, previous, content, author, at_ms, archived, named)


def link_error(before: DocumentVersion | None, link: DocumentVersion) -> str | None:
    """What is wrong with `link` as the version after `before` (None: as the first), or None."""
    expected = 1 if before is None else before.version + 1
    if link.version != expected:
        return f"version {expected} is missing"
    if link.previous != (None if before is None else before.hash):
        return f"version {link.version} does not name the hash of version {link.version - 1}"
    own = chain_hash(
        link.path, link.version, link.previous, link.content, link.author, link.at_ms, link.archived
    )
    if link.hash != own:
        return f"version {link.version} was changed: its hash does not match its fields"
    return None


Verdict = Literal["make", "stands", "conflict", "archived", "missing"]


def judge_publish(head: DocumentVersion | None, expected_version: int, content: Hash) -> Verdict:
    """What publishing `content` over `expected_version` (0: as a new document) does to a document with this head."""
    match head:
        case None:
            return "make" if expected_version == 0 else "missing"
        case DocumentVersion(archived=True):
            return "make" if head.version == expected_version else "archived"
        case _ if head.content == content:
            return "stands"
        case _:
            return "make" if head.version == expected_version else "conflict"


def judge_append(head: DocumentVersion | None, expected_version: int | None, added: bytes) -> Verdict:
    """What appending does; without `expected_version` it follows whatever the head is."""
    match head:
        case None:
            return "missing"
        case DocumentVersion(archived=True):
            return "archived"
        case _ if expected_version is not None and expected_version != head.version:
            return "conflict"
        case _:
            return "make" if added else "stands"


def judge_archive(head: DocumentVersion | None, archived: bool) -> Verdict:
    """What archiving (or, with False, bringing back) does; repeated it does nothing."""
    if head is None:
        return "missing"
    return "stands" if head.archived is archived else "make"


def check_path(path: str) -> str:
    """The path of a document. Raises InvalidParameter naming the rule it breaks."""
    segments = _check_segments(path)
    if any(_LIKE_VERSION.fullmatch(segment) for segment in segments):
        _refuse(
            path, "a segment of v and digits names a version", "Leave the version out, or rename the segment."
        )
    return path


def split_version(path: str) -> tuple[str, int | None]:
    """A document's path and the version that a last segment `v<number>` names. Raises InvalidParameter."""
    parent, _, last = path.rpartition("/")
    named = _VERSION.fullmatch(last)
    if named is None or not parent:
        return check_path(path), None
    return check_path(parent), int(named[1][:_DIGITS_MAX])


def check_prefix(prefix: str) -> str:
    """A prefix of paths: any text that could begin one. Raises InvalidParameter."""
    _check_text(prefix, "prefix")
    return prefix


def _check_segments(path: str) -> Sequence[str]:
    _check_text(path, "path")
    if not path.startswith("/"):
        _refuse(path, "it does not begin with /", "Paths are absolute, for instance /team/plan.md.")
    segments = path[1:].split("/")
    if "" in segments:
        _refuse(path, "it has an empty segment", "Put exactly one / between names and none at the end.")
    if "." in segments or ".." in segments:
        _refuse(path, "it has a . or .. segment", "Write the whole path out.")
    return segments


def _check_text(path: str, argument: str) -> None:
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        _refuse(path, "it is not valid Unicode text", "Send text that UTF-8 can carry.", argument)
    if size > PATH_BYTES_MAX:
        _refuse(path, f"it has {size} bytes, {PATH_BYTES_MAX} are allowed", "Take a shorter path.", argument)
    if has_controls(path):
        _refuse(path, "it has a control character", "Take printable characters.", argument)
    # a backslash is refused because its encoded form is: some reader would take it for a separator
    if "\\" in path or _ENCODED.search(path):
        _refuse(
            path,
            "it has a backslash or one of %2e %2f %5c %00",
            "Write paths as they are, without percent-encoding.",
            argument,
        )


def _refuse(path: str, why: str, hint: str, argument: str = "path") -> NoReturn:
    shown = path if len(path) <= 80 else path[:80] + "…"
    raise InvalidParameter(f"{argument} {shown!r} is not allowed: {why}.", hint, argument=argument)


def check_author(author: str) -> str:
    """Who a version is by, on one line. Raises InvalidParameter."""
    try:
        author.encode()
        fits = len(author) <= AUTHOR_LENGTH_MAX
    except UnicodeEncodeError:
        fits = False
    if not fits or has_controls(author):
        raise InvalidParameter(
            f"author {author[:40]!r} is not a line of at most {AUTHOR_LENGTH_MAX} characters.",
            "Give a short name without control characters.",
            argument="author",
        )
    return author


def has_controls(text: str) -> bool:
    """Whether there is a control character (Unicode category Cc) in the text."""
    return any(unicodedata.category(character) == "Cc" for character in text)


def body_bytes(body: str) -> bytes:
    """The bytes that are kept, exactly. Raises InvalidParameter for what UTF-8 cannot carry, TooLarge over 1 MiB."""
    try:
        data = body.encode()
    except UnicodeEncodeError as error:
        raise InvalidParameter(
            f"body is not valid Unicode text: a lone surrogate stands at character {error.start}.",
            "Send text that UTF-8 can carry.",
            argument="body",
        ) from None
    check_size(len(data))
    return data


def check_size(size: int) -> None:
    """Raises TooLarge when a document would have more bytes than it may."""
    if size > BODY_BYTES_MAX:
        raise TooLarge(
            f"The document would have {size} bytes; at most {BODY_BYTES_MAX} are allowed.",
            "Split it over several documents.",
            bytes=size,
            bytes_max=BODY_BYTES_MAX,
        )


def joined(text: bytes, added: bytes) -> bytes:
    """`added` after `text`, on a new line: a line end like the others of the text is put in where it lacks one."""
    if not text or not added or text.endswith(b"\n"):
        return text + added
    crlf = text.count(b"\r\n")
    wants_cr = 2 * crlf > text.count(b"\n") and not text.endswith(b"\r")
    return text + (b"\r\n" if wants_cr else b"\n") + added


def count_lines(body: str) -> int:
    """Lines end at LF; text after the last LF is a line too."""
    return body.count("\n") + (1 if body and not body.endswith("\n") else 0)


def line_window(body: str, from_line: int, max_lines: int | None) -> str:
    """Lines from number `from_line` (counted from 1) on, at most `max_lines`, each as it is; "" beyond the end."""
    skipped = body.split("\n", from_line - 1)
    if len(skipped) < from_line:
        return ""
    rest = skipped[-1]
    if max_lines is None:
        return rest
    taken = rest.split("\n", max_lines)
    return rest[: len(rest) - len(taken[-1])] if len(taken) > max_lines else rest
