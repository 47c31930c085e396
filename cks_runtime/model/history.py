"""Versions, their ancestry, and where two lines of history last agreed."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, TypeVar

from cks_runtime.model.canon import Hash, Json, canonical, digest, parse_exact
from cks_runtime.model.errors import DamagedBlob, VersionNotFound
from cks_runtime.model.trie import EMPTY_ROOT

MERGE_AUTHOR: Final = "auto-merge"


@dataclass(frozen=True, slots=True)
class Version:
    """One state of a session; `id` is the hash of exactly the other fields.

    Parents are kept sorted, each once. Raises NotCanonical for text that is not Unicode (a lone surrogate).
    """

    parents: tuple[Hash, ...]
    root: Hash
    closed: bool
    author: str
    message: str
    created_at_ms: int
    id: Hash = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parents", tuple(sorted(set(self.parents))))
        object.__setattr__(self, "id", digest(self.blob()))

    def blob(self) -> bytes:
        """Stored form: canonical JSON, whose hash is `id`."""
        value: dict[str, Json] = {
            "parents": [parent.hex() for parent in self.parents],
            "root": self.root.hex(),
            "closed": self.closed,
            "author": self.author,
            "message": self.message,
            "created_at": self.created_at_ms,
        }
        return canonical(value)


def version_from_blob(data: bytes, expected: Hash) -> Version:
    """The version stored as `data` under `expected`. Raises DamagedBlob for any other bytes."""
    if digest(data) != expected:
        raise _damaged(expected, "its bytes have another hash")
    try:
        match parse_exact(data):
            case {
                "parents": list(parents),
                "root": str(root),
                "closed": bool(closed),
                "author": str(author),
                "message": str(message),
                "created_at": int(created_at_ms),
            } if not isinstance(created_at_ms, bool):
                ids = tuple(_hash_from(parent) for parent in parents)
                version = Version(ids, _hash_from(root), closed, author, message, created_at_ms)
            case _:
                raise _damaged(expected, "it lacks a field of a version")
    except ValueError as error:
        raise _damaged(expected, str(error)) from error
    # One comparison covers further keys, the order of parents and of keys, and spaces.
    if version.id != expected:
        raise _damaged(expected, "not in canonical form")
    return version


def _hash_from(text: Json) -> Hash:
    if not isinstance(text, str) or len(text) != 64:
        raise ValueError(f"{text!r} is not a hash of 64 hex digits")
    return bytes.fromhex(text)


def _damaged(id: Hash, reason: str) -> DamagedBlob:
    return DamagedBlob(f"version {id.hex()} is damaged: {reason}", blob=id.hex(), reason=reason)


FIRST_VERSION: Final = Version((), EMPTY_ROOT, False, "cks", "", 0)
"""Where every session begins, so that two replicas which create one session have a common ancestor."""


def merge_version(heads: Sequence[Version], root: Hash, closed: bool) -> Version:
    """The automatic merge of `heads` (one or more) with content `root`: the same on every replica."""
    newest_ms = max(head.created_at_ms for head in heads)
    return Version(tuple(head.id for head in heads), root, closed, MERGE_AUTHOR, "", newest_ms)


def merge_closed(bases: Sequence[bool], ours: bool, theirs: bool) -> bool:
    """Three-way merge of `closed`: the side that changed it wins. Where the bases differ, closed wins."""
    if ours == theirs:
        return ours
    return True if len(set(bases)) != 1 else not bases[0]


@dataclass(frozen=True, slots=True)
class Ancestry:
    """A version's parents and its generation: 1 + the greatest generation of a parent, 0 without parents."""

    parents: tuple[Hash, ...]
    generation: int


def generation_after(parents: Iterable[Ancestry]) -> int:
    """Generation of a version that has these parents."""
    return max((parent.generation + 1 for parent in parents), default=0)


Reading = Generator[list[Hash], Mapping[Hash, Ancestry], None]
"""Asks its driver for ancestries; an answer may hold more than was asked (to save further requests)."""

_OURS: Final = 1
_THEIRS: Final = 2
_BOTH: Final = 3
_STALE: Final = 7
"""Below a common ancestor that was found."""


class _Paint:
    """Versions painted with the sides that reach them, handed out by falling generation.

    A version is handed out after all its descendants, so its paint is final then.
    """

    def __init__(self) -> None:
        self.known: dict[Hash, Ancestry] = {}
        self._paint: dict[Hash, int] = {}
        self._queue: list[tuple[int, Hash]] = []
        self._unread: list[Hash] = []
        self._waiting = {_OURS: 0, _THEIRS: 0, _BOTH: 0, _STALE: 0}

    def add(self, id: Hash, paint: int) -> None:
        before = self._paint.get(id, 0)
        after = before | paint
        if after == before:
            return
        if before:
            self._waiting[before] -= 1
        else:
            self._unread.append(id)
        self._waiting[after] += 1
        self._paint[id] = after

    def can_find_more(self) -> bool:
        """Whether a lowest common ancestor may still come: one waits, or lines of both sides do."""
        return bool(self._waiting[_BOTH] or (self._waiting[_OURS] and self._waiting[_THEIRS]))

    def read(self) -> Reading:
        """Learn the generations of all that waits."""
        unread, self._unread = self._unread, []
        yield from _learn(self.known, unread)
        for id in unread:
            heappush(self._queue, (-self.known[id].generation, id))

    def take(self) -> tuple[Hash, int]:
        """The waiting version of the greatest generation, with its paint."""
        _, id = heappop(self._queue)
        paint = self._paint[id]
        self._waiting[paint] -= 1
        return id, paint


def merge_bases(a: Hash, b: Hash) -> Generator[list[Hash], Mapping[Hash, Ancestry], tuple[Hash, ...]]:
    """All lowest common ancestors of two versions, sorted; several after criss-cross merges.

    Where one descends from the other it is the older one. Yields the versions whose ancestry it needs; the
    cost follows the divergence, not the length of the history. Raises VersionNotFound for one that the answer
    leaves out.
    """
    if a == b:
        return (a,)
    paint = _Paint()
    paint.add(a, _OURS)
    paint.add(b, _THEIRS)
    found: list[Hash] = []
    while paint.can_find_more():
        yield from paint.read()
        id, reached = paint.take()
        if reached == _BOTH:
            found.append(id)
            reached = _STALE
        for parent in paint.known[id].parents:
            paint.add(parent, reached)
    return tuple(sorted(found))


def is_ancestor(old: Hash, new: Hash) -> Generator[list[Hash], Mapping[Hash, Ancestry], bool]:
    """Whether `new` descends from `old` or is it. Looks only at what is younger than `old`.

    Yields the versions whose ancestry it needs. Raises VersionNotFound for a version the answer leaves out.
    """
    known: dict[Hash, Ancestry] = {}
    seen = {new}
    level = [new]
    while level and old not in seen:
        yield from _learn(known, [old, *level])
        younger = [id for id in level if known[id].generation > known[old].generation]
        level = list(dict.fromkeys(p for id in younger for p in known[id].parents if p not in seen))
        seen.update(level)
    return old in seen


def _learn(known: dict[Hash, Ancestry], ids: Iterable[Hash]) -> Reading:
    missing = [id for id in ids if id not in known]
    if missing:
        answer = yield missing
        known.update(answer)
    for id in missing:
        if id not in known:
            raise VersionNotFound(f"no version {id.hex()}", "Its history is not here.", version_id=id.hex())


_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")
_Result = TypeVar("_Result")


def run_sync(reading: Generator[_Asked, _Answer, _Result], fetch: Callable[[_Asked], _Answer]) -> _Result:
    """Drive a generator that asks (`merge_bases`, `load_graph`, …) with a plain function that answers."""
    try:
        asked = next(reading)
        while True:
            asked = reading.send(fetch(asked))
    except StopIteration as stop:
        result: _Result = stop.value
        return result
