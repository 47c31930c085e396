"""The one way a session's head moves: compute, then compare-and-swap; a lost race computes again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from cks_runtime.flow.clock import Clock
from cks_runtime.flow.graphs import Graphs, in_worker
from cks_runtime.flow.journal import Journal
from cks_runtime.model.canon import Hash
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.errors import (
    HeadMoved,
    InvalidKnowledge,
    InvalidParameter,
    SessionClosed,
    SessionNotFound,
    TooLarge,
)
from cks_runtime.model.events import Event, SessionCreated
from cks_runtime.model.events import HeadMoved as HeadMovedEvent
from cks_runtime.model.graph import EMPTY_GRAPH, Graph, changes
from cks_runtime.model.history import FIRST_VERSION, Version
from cks_runtime.model.knowledge import KObject, Limits, check_session_id
from cks_runtime.model.operations import Applied, apply_operations, replace_with
from cks_runtime.model.records import Keyring
from cks_runtime.model.trie import new_nodes
from cks_runtime.model.validate import check_change
from cks_runtime.model.validity import due
from cks_runtime.store import blobs, sessions, sweeps
from cks_runtime.store.journal import append_events
from cks_runtime.store.ports import Reader, Store, Unit
from cks_runtime.store.sessions import SessionRow

TRIES_MAX = 5  # the last one computes inside the write transaction and cannot lose
_INLINE_MAX = 50  # more operations than this are applied in a worker thread


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
    merged_graphs: tuple[Graph, ...] = ()
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
        *,
        create: bool = False,
        title: str = "",
        expected_head: str | None = None,
        message: str = "",
        author: str = "",
    ) -> Moved:
        """Apply operations, all or nothing; they are applied again to a newer head when one got in between.

        Raises InvalidParameter and ObjectNotFound naming the operation, InvalidKnowledge with the diagnostics,
        SessionNotFound, SessionClosed, TooLarge, and HeadMoved only with `expected_head`.
        """
        return await self._edit(
            session_id,
            lambda graph: apply_operations(graph, operations, self.limits),
            len(operations),
            create=create,
            title=title,
            expected_head=expected_head,
            message=message,
            author=author,
        )

    async def put(
        self,
        session_id: str,
        objects: Sequence[KObject],
        *,
        create: bool = False,
        title: str = "",
        expected_head: str | None = None,
        message: str = "",
        author: str = "",
    ) -> Moved:
        """Add or replace whole objects; otherwise as `evolve`."""
        return await self._edit(
            session_id,
            lambda graph: replace_with(graph, objects, self.limits),
            len(objects),
            create=create,
            title=title,
            expected_head=expected_head,
            message=message,
            author=author,
        )

    async def _edit(
        self,
        session_id: str,
        edit: Callable[[Graph], Applied],
        size: int,
        *,
        create: bool,
        title: str,
        expected_head: str | None,
        message: str,
        author: str,
    ) -> Moved:
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
            state = await self._state(reader, session_id, create, expected_head)
        wanted = await plan(state, None)
        if wanted is None and state.exists:
            return await self._unmoved(state, None)
        async with self._store.unit() as unit:
            moved, generation = await self._write(unit, state, wanted, title)
        self._graphs.remember(moved.after, moved.version, generation)
        return moved

    async def _try_inside(
        self, session_id: str, plan: Planner, create: bool, title: str, expected_head: str | None
    ) -> Moved:
        async with self._store.unit() as unit:
            state = await self._state(unit, session_id, create, expected_head)
            wanted = await plan(state, unit)
            if wanted is None and state.exists:
                return await self._unmoved(state, unit)
            moved, generation = await self._write(unit, state, wanted, title)
        self._graphs.remember(moved.after, moved.version, generation)
        return moved

    async def _unmoved(self, state: State, reader: Reader | None) -> Moved:
        version = await self._graphs.version(state.row.head, reader)
        return Moved(state.row.session_id, version, state.graph, state.graph, no_op=True)

    async def _state(self, reader: Reader, session_id: str, create: bool, expected_head: str | None) -> State:
        row = await sessions.get_session(reader, session_id)
        exists = row is not None
        if row is None:
            if not create:
                raise not_found(session_id)
            row = new_row(session_id, "", self._clock())
        check_expected(row, expected_head)
        return State(row, await self._graphs.graph(row.root, reader=reader), exists)

    async def _write(self, unit: Unit, state: State, plan: Plan | None, title: str) -> tuple[Moved, int]:
        now_ms = self._clock()
        graph = state.graph if plan is None else plan.graph
        version, generation = _next_version(state, plan, now_ms)
        changed = changes(state.graph, graph)
        touched = [after for _, _, after in changed if after is not None]
        await blobs.put_blobs(unit, _new_blobs(state.graph, graph, touched))
        if version is not FIRST_VERSION and (plan is None or plan.adopt is None):
            await blobs.put_version(unit, version, generation)
        await sweeps.put_due(
            unit, [(kind, at_ms, obj.hash, obj.id) for obj in touched for kind, at_ms in due(obj)]
        )
        events = await plan.also(unit, version) if plan is not None and plan.also is not None else []
        events += await append_events(unit, self._events(state, version, len(changed), title, now_ms))
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


def _new_blobs(
    before: Graph, after: Graph, touched: Collection[KObject]
) -> list[tuple[Hash, blobs.Kind, bytes]]:
    rows: list[tuple[Hash, blobs.Kind, bytes]] = [
        (key, "node", data) for key, data in new_nodes(before.trie, after.trie)
    ]
    rows += [(obj.hash, "object", obj.blob()) for obj in touched]
    return rows


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


def check_expected(row: SessionRow, expected_head: str | None) -> None:
    """Raises HeadMoved when the head is not the expected one (64 hex digits, or a prefix of 8 or more)."""
    if expected_head is None:
        return
    wanted = expected_head.lower()
    if not 8 <= len(wanted) <= 64 or any(digit not in "0123456789abcdef" for digit in wanted):
        raise InvalidParameter(
            f"expected_head is {expected_head[:80]!r}, not a version id.",
            "Give 8 to 64 hex digits of the version's id.",
            argument="expected_head",
        )
    if not row.head.hex().startswith(wanted):
        raise HeadMoved(
            f"The head of session {row.session_id!r} is {row.head.hex()}, not {expected_head}.",
            "Read the session again, then retry with its current head.",
            current_head=row.head.hex(),
        )


def raise_errors(found: Sequence[Diagnostic]) -> None:
    """Raises InvalidKnowledge when there are ERRORs among the diagnostics."""
    errors = [diagnostic for diagnostic in found if diagnostic.severity == "ERROR"]
    if not errors:
        return
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    raise InvalidKnowledge(
        f"{errors[0].message}{more}",
        "Nothing was changed. Fix what the diagnostics name and send the whole call again.",
        [error.as_json() for error in errors[:100]],
    )


def not_found(session_id: str) -> SessionNotFound:
    """The error for a session that does not exist."""
    return SessionNotFound(
        f"There is no session {session_id!r}.",
        "Use list_sessions, or evolve_knowledge with create=true to make it.",
    )


def closed_error(session_id: str) -> SessionClosed:
    """The error for an edit of a closed session."""
    return SessionClosed(
        f"Session {session_id!r} is closed.", "Reopen it with close_session reopen=true, or branch from it."
    )
