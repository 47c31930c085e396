"""The one way a session's head moves: compute, then compare-and-swap; a lost race computes again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypedDict, Unpack

from cks_runtime.flow.clock import Clock
from cks_runtime.flow.graphs import Graphs, in_worker
from cks_runtime.flow.journal import Journal
from cks_runtime.flow.refusals import check_movable, check_text, closed_error, not_found, raise_errors
from cks_runtime.model.canon import Hash
from cks_runtime.model.errors import TooLarge
from cks_runtime.model.events import Event, SessionCreated
from cks_runtime.model.events import HeadMoved as HeadMovedEvent
from cks_runtime.model.graph import EMPTY_GRAPH, Graph, changes
from cks_runtime.model.history import FIRST_VERSION, Version
from cks_runtime.model.knowledge import KObject, Limits, check_session_id
from cks_runtime.model.operations import Applied, apply_operations, replace_with
from cks_runtime.model.records import Keyring
from cks_runtime.model.trie import diff, new_nodes
from cks_runtime.model.validate import check_change
from cks_runtime.model.validity import due
from cks_runtime.store import blobs, sessions, sweeps
from cks_runtime.store.journal import append_events
from cks_runtime.store.ports import Reader, Store, Unit
from cks_runtime.store.sessions import SessionRow

TRIES_MAX = 5  # the last one computes inside the write transaction and cannot lose
_INLINE_MAX = 50  # more operations or changes than this are worked off in a thread


@dataclass(frozen=True, slots=True)
class State:
    """A session as a plan sees it. `row.generation` and `row.head` are the version a new one will follow."""

    row: SessionRow
    graph: Graph
    exists: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The version a session should move to.

    `parents` beside the present head are other lines merged in. `adopt` names an existing version to be taken as it
    is (a fast-forward). `also` writes more into the same unit, given the version, and returns its events.
    """

    graph: Graph
    closed: bool
    author: str = ""
    message: str = ""
    merged: tuple[Hash, ...] = ()
    adopt: Version | None = None
    generation: int = 0
    also: Callable[[Unit, Version], Awaitable[list[Event]]] | None = None


@dataclass(frozen=True, slots=True)
class Moved:
    """What a write did: the head after it, the one before, and both graphs. `no_op`: nothing changed."""

    session_id: str
    version: Version
    before: Graph
    after: Graph
    no_op: bool
    created: bool = False
    cascade_relations: tuple[str, ...] = ()
    cascade_records: tuple[str, ...] = ()
    events: tuple[Event, ...] = field(default=(), repr=False)


class EditOptions(TypedDict, total=False):
    """What an edit may say beside itself: make the session (with a title), the head it expects, and who did it why."""

    create: bool
    title: str
    expected_head: str | None
    message: str
    author: str


Planner = Callable[[State, Reader | None], Awaitable[Plan | None]]


class _LostRace(Exception):
    """The head moved between reading and swapping."""


class Commits:
    """Writes to sessions."""

    def __init__(
        self,
        store: Store,
        graphs: Graphs,
        journal: Journal,
        keys: Keyring,
        limits: Limits,
        clock: Clock,
        origin: str,
        default_session: str,
    ) -> None:
        self._store = store
        self._graphs = graphs
        self._journal = journal
        self._clock = clock
        self._origin = origin
        self._default_session = default_session
        self.keys = keys
        self.limits = limits

    async def evolve(
        self,
        session_id: str,
        operations: Sequence[object],
        **options: Unpack[EditOptions],
    ) -> Moved:
        """Apply operations, all or nothing; they are applied again to a newer head when one got in between.

        Raises InvalidParameter and ObjectNotFound naming the operation, InvalidKnowledge with the diagnostics,
        SessionNotFound, SessionClosed, TooLarge, and HeadMoved only with `expected_head`.
        """
        return await self._edit(
            session_id,
            lambda graph: apply_operations(graph, operations, self.limits),
            len(operations),
            **options,
        )

    async def put(
        self,
        session_id: str,
        objects: Sequence[KObject],
        **options: Unpack[EditOptions],
    ) -> Moved:
        """Add or replace whole objects; otherwise as `evolve`."""
        return await self._edit(
            session_id,
            lambda graph: replace_with(graph, objects, self.limits),
            len(objects),
            **options,
        )

    async def _edit(
        self,
        session_id: str,
        edit: Callable[[Graph], Applied],
        size: int,
        *,
        create: bool = False,
        title: str = "",
        expected_head: str | None = None,
        message: str = "",
        author: str = "",
    ) -> Moved:
        check_text(author=author, message=message)
        applied: list[Applied] = []

        def compute(graph: Graph) -> Applied:
            result = edit(graph)
            self.require_valid([graph], result.graph, result.touched)
            return result

        async def plan(state: State, reader: Reader | None) -> Plan | None:
            if state.row.closed:
                raise closed_error(state.row.session_id)
            result = (
                compute(state.graph) if size <= _INLINE_MAX else await in_worker(lambda: compute(state.graph))
            )
            applied[:] = [result]
            if result.graph.root == state.graph.root:
                return None
            return Plan(result.graph, closed=False, author=author, message=message)

        moved = await self.advance(session_id, plan, create=create, title=title, expected_head=expected_head)
        return replace(
            moved, cascade_relations=applied[0].cascade_relations, cascade_records=applied[0].cascade_records
        )

    def require_valid(self, parents: Sequence[Graph], after: Graph, touched: Iterable[str]) -> None:
        """Raises InvalidKnowledge when the change leaves an ERROR, TooLarge when the session outgrows its limit."""
        if len(after) > self.limits.objects and all(len(after) > len(parent) for parent in parents[:1]):
            raise TooLarge(
                f"The session would hold {len(after)} objects; at most {self.limits.objects} are allowed.",
                "Split the knowledge over several sessions or raise CKS_MAX_OBJECTS.",
            )
        raise_errors(check_change(parents, after, touched, self.keys))

    async def advance(
        self,
        session_id: str,
        plan: Planner,
        *,
        create: bool = False,
        title: str = "",
        expected_head: str | None = None,
    ) -> Moved:
        """Move a session's head by what `plan` makes of its state; None from the plan means no version.

        The plan runs again on the newer head after a lost race: four times without holding anything, then inside
        the write transaction.
        """
        check_session_id(session_id)
        check_text(title=title)
        create = create or session_id == self._default_session
        for attempt in range(TRIES_MAX):
            try:
                if attempt == TRIES_MAX - 1:
                    moved = await self._try_inside(session_id, plan, create, title, expected_head)
                else:
                    moved = await self._try(session_id, plan, create, title, expected_head)
            except _LostRace:
                continue
            await self._journal.told(moved.events)
            return moved
        raise AssertionError("the last try holds the write lock and cannot lose")

    async def _try(
        self, session_id: str, plan: Planner, create: bool, title: str, expected_head: str | None
    ) -> Moved:
        async with self._store.reader() as reader:
            row, exists = await self._row(reader, session_id, create, expected_head)
        state = State(row, await self._graphs.graph(row.root), exists)
        wanted = await plan(state, None)
        if wanted is None and exists:
            return await self._unmoved(state, None)
        rows = await _rows(state, wanted)
        async with self._store.unit() as unit:
            moved, generation = await self._write(unit, state, wanted, rows, title)
        self._graphs.remember(moved.after, moved.version, generation)
        return moved

    async def _try_inside(
        self, session_id: str, plan: Planner, create: bool, title: str, expected_head: str | None
    ) -> Moved:
        async with self._store.unit() as unit:
            row, exists = await self._row(unit, session_id, create, expected_head)
            state = State(row, await self._graphs.graph(row.root, reader=unit), exists)
            wanted = await plan(state, unit)
            if wanted is None and exists:
                return await self._unmoved(state, unit)
            moved, generation = await self._write(unit, state, wanted, await _rows(state, wanted), title)
        self._graphs.remember(moved.after, moved.version, generation)
        return moved

    async def _unmoved(self, state: State, reader: Reader | None) -> Moved:
        version = await self._graphs.version(state.row.head, reader)
        return Moved(state.row.session_id, version, state.graph, state.graph, no_op=True)

    async def _row(
        self, reader: Reader, session_id: str, create: bool, expected_head: str | None
    ) -> tuple[SessionRow, bool]:
        """The session, or one that is yet to be made, and whether it exists."""
        row = await sessions.get_session(reader, session_id)
        exists = row is not None
        if row is None:
            if not create:
                raise not_found(session_id)
            row = new_row(session_id, "", self._clock())
        check_movable(row, expected_head)
        return row, exists

    async def _write(
        self, unit: Unit, state: State, plan: Plan | None, rows: _Rows, title: str
    ) -> tuple[Moved, int]:
        now_ms = self._clock()
        graph = state.graph if plan is None else plan.graph
        version, generation = _next_version(state, plan, now_ms)
        await blobs.put_blobs(unit, rows.blobs)
        if version is not FIRST_VERSION and (plan is None or plan.adopt is None):
            await blobs.put_version(unit, version, generation)
        await sweeps.put_due(unit, rows.due)
        events = await plan.also(unit, version) if plan is not None and plan.also is not None else []
        events += await append_events(unit, self._events(state, version, rows.changed, title, now_ms))
        await _swap(unit, state, version, title, now_ms, events[-1].seq if events else 0)
        moved = Moved(
            session_id=state.row.session_id,
            version=version,
            before=state.graph,
            after=graph,
            no_op=version.id == state.row.head,
            created=not state.exists,
            events=tuple(events),
        )
        return moved, generation

    def _events(self, state: State, version: Version, changed: int, title: str, now_ms: int) -> list[Event]:
        session_id = state.row.session_id
        events: list[Event] = []
        if not state.exists:
            events.append(
                SessionCreated(
                    at_ms=now_ms, session_id=session_id, title=title, version_id=state.row.head.hex()
                )
            )
        if version.id != state.row.head:
            events.append(
                HeadMovedEvent(
                    at_ms=now_ms,
                    session_id=session_id,
                    version_id=version.id.hex(),
                    previous_id=state.row.head.hex(),
                    author=version.author,
                    closed=version.closed,
                    changed=changed,
                    origin=self._origin,
                )
            )
        return events


def _next_version(state: State, plan: Plan | None, now_ms: int) -> tuple[Version, int]:
    if plan is None:
        return FIRST_VERSION, 0
    if plan.adopt is not None:
        return plan.adopt, plan.generation
    parents = tuple(sorted({state.row.head, *plan.merged}))
    version = Version(parents, plan.graph.root, plan.closed, plan.author, plan.message, now_ms)
    return version, max(state.row.generation, plan.generation) + 1


@dataclass(frozen=True, slots=True)
class _Rows:
    """What a new graph adds to the database, and how many objects changed."""

    changed: int
    blobs: list[tuple[Hash, blobs.Kind, bytes]]
    due: list[tuple[sweeps.DueKind, int, Hash, str]]


async def _rows(state: State, plan: Plan | None) -> _Rows:
    """Made in a thread where it is much."""
    before, after = state.graph, state.graph if plan is None else plan.graph
    if sum(1 for _ in islice(diff(before.trie, after.trie), _INLINE_MAX + 1)) > _INLINE_MAX:
        return await in_worker(lambda: _new_rows(before, after))
    return _new_rows(before, after)


def _new_rows(before: Graph, after: Graph) -> _Rows:
    changed = changes(before, after)
    touched = [now for _, _, now in changed if now is not None]
    rows: list[tuple[Hash, blobs.Kind, bytes]] = [
        (key, "node", data) for key, data in new_nodes(before.trie, after.trie)
    ]
    rows += [(obj.hash, "object", obj.blob()) for obj in touched]
    dates = [(kind, at_ms, obj.hash, obj.id) for obj in touched for kind, at_ms in due(obj)]
    return _Rows(len(changed), rows, dates)


async def _swap(unit: Unit, state: State, version: Version, title: str, now_ms: int, seq: int) -> None:
    row = state.row
    if state.exists:
        if len(version.parents) > 1:
            await sessions.put_merge(unit, row.session_id, version.id, row.head)
        moved = await sessions.move_head(
            unit, row.session_id, row.head, version.id, version.root, version.closed, now_ms, seq
        )
    else:
        fresh = replace(
            row,
            title=title,
            head=version.id,
            root=version.root,
            closed=version.closed,
            created_at_ms=now_ms,
            moved_at_ms=now_ms,
            moved_seq=seq,
        )
        moved = await sessions.insert_session(unit, fresh)
    if not moved:
        raise _LostRace


def new_row(session_id: str, title: str, now_ms: int) -> SessionRow:
    """A session that has not been written yet: it stands at the fixed empty first version."""
    return SessionRow(
        session_id=session_id,
        title=title,
        fork_session=None,
        fork_version=FIRST_VERSION.id,
        head=FIRST_VERSION.id,
        root=EMPTY_GRAPH.root,
        closed=False,
        created_at_ms=now_ms,
        moved_at_ms=now_ms,
        moved_seq=0,
        generation=0,
    )
