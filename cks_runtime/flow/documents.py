"""Documents: immutable numbered versions per path, written by compare-and-swap; knows nothing of merging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cks_runtime.flow.clock import Clock
from cks_runtime.flow.document_check import chain_error
from cks_runtime.flow.journal import Journal
from cks_runtime.model import documents as rules
from cks_runtime.model.canon import digest
from cks_runtime.model.document_events import DocumentPublished
from cks_runtime.model.documents import DocumentVersion, Verdict
from cks_runtime.model.errors import DamagedBlob, DocumentNotFound, InvalidParameter, VersionNotFound
from cks_runtime.model.events import Event
from cks_runtime.store import documents as rows
from cks_runtime.store.journal import append_events
from cks_runtime.store.ports import Store, Unit


@dataclass(frozen=True, slots=True)
class Stands:
    """The write succeeded: the document stands at `version`. `made`: this call made it."""

    version: DocumentVersion
    made: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """Another version came first: the document stands at `head`, not at what the caller expected."""

    head: DocumentVersion


@dataclass(frozen=True, slots=True)
class Archived:
    """The document is archived at `head` and takes only a publish at exactly that version."""

    head: DocumentVersion


Written = Stands | Lost | Archived


@dataclass(frozen=True, slots=True)
class Fetched:
    """A version and its text, byte for byte."""

    version: DocumentVersion
    body: str


@dataclass(frozen=True, slots=True)
class Chain:
    """A document's history: a page of versions, newest first, and what breaks the chain, if anything does."""

    current: int
    versions: tuple[DocumentVersion, ...]
    error: str | None


class Documents:
    """Reads and writes of documents. Every write tells a `DocumentPublished` in its own transaction."""

    def __init__(self, store: Store, journal: Journal, clock: Clock) -> None:
        self._store = store
        self._journal = journal
        self._clock = clock

    async def publish(self, path: str, body: str, expected_version: int, author: str = "") -> Written:
        """Make `body` the version after `expected_version`; 0 means only as a new document.

        A body that the head has already makes no version and succeeds. At an archived head's version it brings the
        document back. Raises DocumentNotFound for an expected version of a document that does not exist,
        InvalidParameter and TooLarge.
        """
        rules.check_path(path)
        rules.check_author(author)
        _check_version(expected_version)
        data = rules.body_bytes(body)
        content = digest(data)
        async with self._store.unit() as unit:
            head = await rows.get_head(unit, path)
            verdict = rules.judge_publish(head, expected_version, content)
            made = None
            if verdict == "make":
                version = rules.next_version(path, head, content, author, self._clock())
                made = await _put(unit, version, data)
        return await self._outcome(path, verdict, head, made)

    async def append(
        self, path: str, body: str, expected_version: int | None = None, author: str = ""
    ) -> Written:
        """Put `body` after the present text, on a new line; concurrent appends take turns and none is lost.

        Raises DocumentNotFound, InvalidParameter, TooLarge for what the whole would be.
        """
        rules.check_path(path)
        rules.check_author(author)
        if expected_version is not None:
            _check_version(expected_version)
        added = rules.body_bytes(body)
        async with self._store.unit() as unit:
            head = await rows.get_head(unit, path)
            verdict = rules.judge_append(head, expected_version, added)
            made = None
            if verdict == "make":
                assert head is not None
                text = (await rows.get_bodies(unit, [head.content])).get(head.content)
                whole = rules.joined(_checked(head, text), added)
                rules.check_size(len(whole))
                version = rules.next_version(path, head, digest(whole), author, self._clock())
                made = await _put(unit, version, whole)
        return await self._outcome(path, verdict, head, made)

    async def archive(self, path: str, unarchive: bool = False, author: str = "") -> Written:
        """Put a marker version that hides the document, or one that brings its last body back; repeated none.

        Raises DocumentNotFound.
        """
        rules.check_path(path)
        rules.check_author(author)
        async with self._store.unit() as unit:
            head = await rows.get_head(unit, path)
            verdict = rules.judge_archive(head, not unarchive)
            made = None
            if verdict == "make":
                assert head is not None
                version = rules.next_version(
                    path, head, head.content, author, self._clock(), archived=not unarchive
                )
                made = await _put(unit, version, None)
        return await self._outcome(path, verdict, head, made)

    async def _outcome(
        self,
        path: str,
        verdict: Verdict,
        head: DocumentVersion | None,
        made: tuple[DocumentVersion, Sequence[Event]] | None,
    ) -> Written:
        if made is not None:
            version, events = made
            await self._journal.told(events)
            return Stands(version, made=True)
        if head is None:
            raise _no_document(path)
        match verdict:
            case "stands":
                return Stands(head, made=False)
            case "archived":
                return Archived(head)
            case "conflict":
                return Lost(head)
            case _:
                raise AssertionError(f"verdict {verdict} has a version or no head")

    async def fetch(self, path: str, version: int | None = None) -> Fetched | Archived:
        """The text of the head, or of a version by number (also as `path/v<number>`).

        Raises DocumentNotFound, VersionNotFound, and DamagedBlob when the stored text does not match its hash.
        """
        path, named = rules.split_version(path)
        if version is None:
            version = named
        async with self._store.reader() as reader:
            head = await rows.get_head(reader, path)
            if head is None:
                raise _no_document(path)
            wanted: DocumentVersion | None = head
            if version is not None and version != head.version:
                wanted = await rows.get_version(reader, path, version) if 0 < version < head.version else None
            if wanted is None:
                raise VersionNotFound(
                    f"Document {path!r} has no version {version}; it stands at version {head.version}.",
                    "Use mark_versions to see its versions.",
                    path=path,
                    current_version=head.version,
                )
            if wanted.archived:
                return Archived(wanted)
            data = (await rows.get_bodies(reader, [wanted.content])).get(wanted.content)
        return Fetched(wanted, _checked(wanted, data).decode())

    async def text_at(self, path: str, version: int) -> str | None:
        """The text that stood at a version (of an archived one: the text it keeps); None when it is not there."""
        async with self._store.reader() as reader:
            found = await rows.get_version(reader, path, version)
            bodies = await rows.get_bodies(reader, [found.content]) if found is not None else {}
        if found is None or found.content not in bodies:
            return None
        return _checked(found, bodies[found.content]).decode()

    async def between(self, path: str, low: int, high: int, limit: int) -> list[DocumentVersion]:
        """At most `limit` of the versions from `low` to `high` inclusive, newest first."""
        async with self._store.reader() as reader:
            return await rows.versions_between(reader, path, low, high, limit)

    async def versions(self, path: str, limit: int = 50, below: int | None = None) -> Chain:
        """Versions numbered under `below`, newest first; the whole chain is checked and every body hashed again.

        Raises DocumentNotFound.
        """
        rules.check_path(path)
        async with self._store.reader() as reader:
            current = await rows.head_number(reader, path)
            if current is None:
                raise _no_document(path)
            top = current if below is None else min(current, below - 1)
            page = await rows.versions_between(reader, path, 1, top, limit)
        return Chain(current, tuple(page), await chain_error(self._store, path, current))

    async def page(self, prefix: str = "/", limit: int = 50, after: str = "") -> list[DocumentVersion]:
        """Where the documents whose path begins with `prefix` stand, archived ones too, by path after `after`."""
        rules.check_prefix(prefix)
        async with self._store.reader() as reader:
            return await rows.page_heads(reader, prefix, after, limit)


async def _put(
    unit: Unit, version: DocumentVersion, body: bytes | None
) -> tuple[DocumentVersion, Sequence[Event]]:
    await rows.put_version(unit, version, body)
    published = DocumentPublished(
        at_ms=version.at_ms,
        path=version.path,
        version=version.version,
        author=version.author,
        archived=version.archived,
        content_hash=version.content.hex(),
        hash=version.hash.hex(),
    )
    return version, await append_events(unit, [published])


def _checked(version: DocumentVersion, data: bytes | None) -> bytes:
    if data is None or digest(data) != version.content:
        what = "is missing" if data is None else "does not match its content hash"
        raise DamagedBlob(
            f"The stored text of {version.path!r} version {version.version} {what}.",
            "Fetch another version, and run `cks-mcp check`; restore the file from a copy.",
            path=version.path,
            version=version.version,
        )
    return data


def _check_version(expected_version: int) -> None:
    if expected_version < 0:
        raise InvalidParameter(
            f"expected_version is {expected_version}.",
            "Give the version you read, or 0 for a new document.",
            argument="expected_version",
        )


def _no_document(path: str) -> DocumentNotFound:
    return DocumentNotFound(
        f"There is no document at {path!r}.",
        "Use mark_list to see the paths, or mark_publish with expected_version 0 to make it.",
        path=path,
    )
