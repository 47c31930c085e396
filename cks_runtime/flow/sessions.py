"""Reading sessions: heads, graphs, versions by id or prefix, histories page by page."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from cks_runtime.flow.clock import Clock
from cks_runtime.flow.commits import new_row
from cks_runtime.flow.graphs import Graphs, drive
from cks_runtime.flow.refusals import not_found
from cks_runtime.flow.remote_lines import as_line, line_of, named
from cks_runtime.model.canon import Hash
from cks_runtime.model.errors import DamagedBlob, InvalidParameter, VersionNotFound
from cks_runtime.model.gossip_merge import line_id
from cks_runtime.model.graph import EMPTY_GRAPH, Graph
from cks_runtime.model.history import FIRST_VERSION, Version
from cks_runtime.model.holders import holders
from cks_runtime.model.knowledge import SESSION_ID, check_session_id
from cks_runtime.model.nodes import count_below, parse_node
from cks_runtime.store import sessions as rows
from cks_runtime.store.blobs import get_versions, versions_between
from cks_runtime.store.gossip import RemoteHead, conflict_heads, remote_heads
from cks_runtime.store.ports import Reader, Store
from cks_runtime.store.sessions import SessionRow

PREFIX_MIN = 8
LOOK_BACK = 200

_log = logging.getLogger(__name__)


def _is_version_id(text: str) -> bool:
    return PREFIX_MIN <= len(text) <= 64 and all(digit in "0123456789abcdef" for digit in text)


def _size(root: Hash, blob: bytes | None) -> int | None:
    try:
        return count_below(parse_node(root, blob))
    except DamagedBlob as error:
        _log.error("a graph cannot be counted: %s", error.message)
        return None


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """Versions newest first, every one before its parents; `frontier` is where the next page begins."""

    versions: tuple[Version, ...]
    frontier: tuple[Hash, ...]


class Sessions:
    """Reads of sessions and versions; nothing here writes, and nothing is remembered between calls."""

    def __init__(self, store: Store, graphs: Graphs, clock: Clock, default_session: str) -> None:
        self._store = store
        self._graphs = graphs
        self._clock = clock
        self.default_session = default_session

    async def get(self, session_id: str, reader: Reader | None = None) -> SessionRow:
        """The session, or the other side of a conflict, `<session>@<replica>`; inside a unit pass it as `reader`.

        The default session reads as empty before its first write. Raises SessionNotFound.
        """
        if reader is None:
            async with self._store.reader() as opened:
                return await self.get(session_id, opened)
        if (line := line_of(session_id)) is not None:
            return await self._line(*line, reader)
        check_session_id(session_id)
        row = await rows.get_session(reader, session_id)
        if row is not None:
            return row
        if session_id == self.default_session:
            return new_row(session_id, "", 0)
        raise not_found(session_id)

    async def _line(self, session_id: str, replica: str, reader: Reader) -> SessionRow:
        check_session_id(session_id)
        row = await rows.get_session(reader, session_id)
        one = named(await remote_heads(reader, session_id), replica)
        if row is None or one is None:
            raise not_found(line_id(session_id, replica))
        return await self._as_line(row, one, replica, reader)

    async def _as_line(self, row: SessionRow, one: RemoteHead, replica: str, reader: Reader) -> SessionRow:
        version = await self._graphs.version(one.head, reader)
        generation = (await self._graphs.ancestries([one.head], reader))[one.head].generation
        return as_line(row, one, replica, version, generation)

    async def remote_page(self, after: str, limit: int) -> list[SessionRow]:
        """The other sides of open conflicts, by id."""
        async with self._store.reader() as reader:
            found: dict[str, SessionRow] = {}
            for one in await conflict_heads(reader):
                name = line_id(one.session_id, one.holder)
                row = await rows.get_session(reader, one.session_id)
                if name > after and name not in found and row is not None:
                    found[name] = await self._as_line(row, one, one.holder, reader)
        return [found[name] for name in sorted(found)[:limit]]

    async def exists(self, session_id: str) -> bool:
        """Whether a session of this id is stored."""
        async with self._store.reader() as reader:
            return await rows.get_session(reader, session_id) is not None

    async def page(self, closed: bool | None, after: str, limit: int) -> list[SessionRow]:
        """Sessions by id."""
        async with self._store.reader() as reader:
            return await rows.page_sessions(reader, closed, after, limit)

    async def head(self, session_id: str) -> tuple[SessionRow, Graph]:
        """A session and the graph of its head."""
        row = await self.get(session_id)
        return row, await self._graphs.graph(row.root)

    async def graph_of(self, version: Version) -> Graph:
        """The graph of a version."""
        return await self._graphs.graph(version.root)

    async def version(self, text: str, argument: str = "version_id") -> Version:
        """A version by its id: 64 hex digits, or 8 or more where that is unique.

        Raises VersionNotFound, and InvalidParameter naming the argument for what is no version id.
        """
        wanted = text.lower()
        if not _is_version_id(wanted):
            raise InvalidParameter(
                f"{argument} {text[:80]!r} is not a version id.",
                "Give 64 hex digits, or 8 or more where they are unique.",
                argument=argument,
            )
        if FIRST_VERSION.id.hex().startswith(wanted):
            return FIRST_VERSION
        low, high = bytes.fromhex(wanted.ljust(64, "0")), bytes.fromhex(wanted.ljust(64, "f"))
        async with self._store.reader() as reader:
            found = await versions_between(reader, low, high, 2)
        if not found:
            raise VersionNotFound(
                f"There is no version {text}.", "Use list_versions to see the versions of a session."
            )
        if len(found) > 1:
            raise VersionNotFound(f"Version prefix {text} is not unique.", "Give more digits.")
        return await self._graphs.version(found[0])

    async def version_or_session(self, text: str, argument: str) -> tuple[Version, str | None]:
        """A session that exists (its head, and its id) wins over a version id (and None).

        Raises SessionNotFound or VersionNotFound, and InvalidParameter for what can be neither.
        """
        if line_of(text) is not None:
            line = await self.get(text)
            return await self._graphs.version(line.head), line.session_id
        if SESSION_ID.fullmatch(text):
            async with self._store.reader() as reader:
                row = await rows.get_session(reader, text)
            if row is not None:
                return await self._graphs.version(row.head), row.session_id
            if not _is_version_id(text.lower()):
                return await self._graphs.version((await self.get(text)).head), text
        return await self.version(text, argument), None

    async def parent_of(self, session_id: str, version: Version) -> Version:
        """The version a session stood at before this one; of the first version, itself."""
        if not version.parents:
            return version
        previous = version.parents[0]
        if len(version.parents) > 1:
            async with self._store.reader() as reader:
                previous = await rows.own_parent(reader, session_id, version.id) or previous
        return await self._graphs.version(previous)

    async def last_change(self, row: SessionRow, object_id: str) -> Version | None:
        """The newest of the last `LOOK_BACK` versions that gave the object its present content; None: further back."""
        if row.head == FIRST_VERSION.id:
            return None
        page = (await self.history([row.head], LOOK_BACK)).versions
        roots = {version.root for version in page if version.root != EMPTY_GRAPH.root}
        graph = await self._graphs.graph(row.root)
        wanted = {object_id: [graph[object_id].hash]}
        held = await drive(holders(roots, wanted), self._graphs.blobs)
        known = {version.id: version for version in page}
        for version in page:
            if not held.get(version.root):
                continue
            before = [known.get(parent) for parent in version.parents]
            if all(parent is not None and not held.get(parent.root) for parent in before):
                return version
        return None

    async def sizes(self, roots: Sequence[Hash]) -> dict[Hash, int | None]:
        """How many objects each of these roots holds; reads one node a root. None for one that is damaged."""
        real = sorted({root for root in roots if root != EMPTY_GRAPH.root})
        blobs = await self._graphs.blobs(real)
        counts = {root: _size(root, blobs.get(root)) for root in real}
        return {root: counts.get(root, 0) for root in roots}

    async def history(self, frontier: Sequence[Hash], limit: int) -> HistoryPage:
        """A page of the versions reachable from `frontier`: by generation from the top, so parents come last."""
        known = await self._graphs.ancestries(frontier)
        heap = [(-known[key].generation, key) for key in known]
        heapq.heapify(heap)
        waiting = set(known)
        taken: list[Hash] = []
        while heap and len(taken) < limit:
            _, key = heapq.heappop(heap)
            waiting.discard(key)
            taken.append(key)
            fresh = [parent for parent in known[key].parents if parent not in waiting]
            known.update(await self._graphs.ancestries(fresh))
            for parent in fresh:
                waiting.add(parent)
                heapq.heappush(heap, (-known[parent].generation, parent))
        async with self._store.reader() as reader:
            versions = await get_versions(reader, taken)
        return HistoryPage(tuple(versions[key] for key in taken), tuple(key for _, key in sorted(heap)))
