"""Lines of work: branch, merge, revert, close; each a compare-and-swap on the head it was computed from."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cks_runtime.flow.clock import Clock
from cks_runtime.flow.commits import Commits, Moved, Plan, State
from cks_runtime.flow.conflicts import Conflicts
from cks_runtime.flow.graphs import Graphs, in_worker
from cks_runtime.flow.journal import Journal
from cks_runtime.flow.refusals import check_expected, check_text, closed_error, raise_errors
from cks_runtime.flow.remote_lines import line_of, merged_away
from cks_runtime.flow.sessions import Sessions
from cks_runtime.model.canon import Hash
from cks_runtime.model.diagnostics import Diagnostic
from cks_runtime.model.errors import HeadMoved, InvalidParameter
from cks_runtime.model.events import Event, SessionCreated
from cks_runtime.model.graph import Graph, changes
from cks_runtime.model.history import FIRST_VERSION, Version, merge_closed
from cks_runtime.model.merge import Conflicted, MergeConflict, Merged, Resolution, merge
from cks_runtime.store import sessions as rows
from cks_runtime.store.blobs import put_version
from cks_runtime.store.gossip import refused_among
from cks_runtime.store.journal import append_events
from cks_runtime.store.ports import Reader, Store, Unit
from cks_runtime.store.sessions import SessionRow


@dataclass(frozen=True, slots=True)
class MergeDone:
    """A merge that stands (or, in a dry run, would stand) at `version_id`; None in a dry run that makes one."""

    version_id: Hash | None
    before: Graph
    after: Graph
    no_op: bool
    base_version_ids: tuple[Hash, ...]
    dropped_relations: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergeRefused:
    """Two lines that clash: the conflicts, and the bases they were measured against."""

    conflicts: tuple[MergeConflict, ...]
    base_version_ids: tuple[Hash, ...]


class _Clash(Exception):
    def __init__(self, refused: MergeRefused) -> None:
        self.refused = refused


class _DryRun(Exception):
    def __init__(self, done: MergeDone) -> None:
        self.done = done


class Branches:
    """Operations on whole lines of work."""

    def __init__(
        self,
        store: Store,
        graphs: Graphs,
        journal: Journal,
        commits: Commits,
        sessions: Sessions,
        conflicts: Conflicts,
        clock: Clock,
    ) -> None:
        self._store = store
        self._graphs = graphs
        self._journal = journal
        self._commits = commits
        self._sessions = sessions
        self._conflicts = conflicts
        self._clock = clock

    async def create(self, session_id: str, version_id: str | None = None, title: str = "") -> SessionRow:
        """A new open session that starts at a version of `session_id` (default: its head); nothing is copied."""
        parent = await self._sessions.get(session_id)
        version = await self._version_in(parent, version_id)
        await self._require_sound(version.id)
        session_id = (line_of(session_id) or (session_id,))[0]
        check_text(title=title)
        now_ms = self._clock()
        fork = version
        async with self._store.unit() as unit:
            generation = (await self._graphs.ancestries([fork.id], unit))[fork.id].generation
            if version.closed:
                version = Version((fork.id,), fork.root, False, "", f"Branch from {session_id}", now_ms)
                generation += 1
                await put_version(unit, version, generation)
            name = branch_name(session_id, title)
            while await rows.get_session(unit, name) is not None:
                name = branch_name(session_id, title)
            created = SessionCreated(at_ms=now_ms, session_id=name, title=title, version_id=version.id.hex())
            (event,) = await append_events(unit, [created])
            row = SessionRow(
                session_id=name,
                title=title,
                fork_session=session_id,
                fork_version=fork.id,
                head=version.id,
                root=version.root,
                closed=False,
                created_at_ms=now_ms,
                moved_at_ms=now_ms,
                moved_seq=event.seq,
                generation=generation,
            )
            await rows.insert_session(unit, row)
        await self._journal.told([event])
        return row

    async def _refused(self, version_id: Hash, reader: Reader | None = None) -> tuple[Diagnostic, ...]:
        """The ERRORs of a version that gossip keeps as history only; none for any other."""
        if reader is None:
            async with self._store.reader() as opened:
                return await self._refused(version_id, opened)
        return (await refused_among(reader, [version_id])).get(version_id, ())

    async def _require_sound(self, version_id: Hash) -> None:
        raise_errors(await self._refused(version_id))

    async def _version_in(self, row: SessionRow, version_id: str | None) -> Version:
        if version_id is None:
            return await self._graphs.version(row.head)
        version = await self._sessions.version(version_id)
        if not await self._graphs.is_ancestor(version.id, row.head):
            raise not_in_history(version.id.hex(), row.session_id)
        return version

    async def merge(
        self,
        target: str,
        source: str,
        *,
        resolutions: Mapping[str, Resolution] | None = None,
        base_version_id: str | None = None,
        expected_heads: tuple[Hash, Hash] | None = None,
        dry_run: bool = False,
        message: str = "",
        author: str = "",
    ) -> MergeDone | MergeRefused:
        """Merge the head of `source` into `target`. A conflict never touches the target.

        Merging the other side of the target's own gossip conflict (`<target>@<replica>`) closes the conflict in the
        same transaction; then `closed` merges like a field, and a closed target is merged as well.

        Raises SessionNotFound, SessionClosed for a closed target, HeadMoved when `base_version_id` is not the base or
        the two heads are not `expected_heads` (target's, source's), InvalidParameter for a resolution that answers no
        conflict.
        """
        if target == source:
            raise InvalidParameter(
                f"target_session_id and source_session_id are both {target!r}.",
                "Name two different sessions.",
                argument="source_session_id",
            )
        check_text(author=author, message=message)
        result: list[MergeDone] = []
        settles = (line_of(source) or ("",))[0] == target

        async def plan(state: State, reader: Reader | None) -> Plan | None:
            if state.row.closed and not settles:
                raise closed_error(target)
            if expected_heads is not None:
                await self._require_heads(state, source, expected_heads, reader)
            planned, done = await self._plan_merge(
                state, source, dict(resolutions or {}), base_version_id, reader
            )
            if dry_run:
                raise _DryRun(done)
            result[:] = [done]
            if planned is None:
                return None
            text = message or f"Merge {source} into {target}" + _told(resolutions)
            return replace(planned, author=author, message=text)

        await self._sessions.get(source)
        try:
            moved = await self._commits.advance(target, plan)
        except _Clash as clash:
            return clash.refused
        except _DryRun as dry:
            return dry.done
        (done,) = result
        return MergeDone(
            moved.version.id,
            done.before,
            done.after,
            moved.no_op,
            done.base_version_ids,
            done.dropped_relations,
            done.restored,
        )

    async def _require_heads(
        self, state: State, source: str, expected: tuple[Hash, Hash], reader: Reader | None
    ) -> None:
        other = await self._sessions.get(source, reader)
        for row, head in ((state.row, expected[0]), (other, expected[1])):
            check_expected(row, head.hex())

    async def _plan_merge(
        self,
        state: State,
        source: str,
        resolutions: dict[str, Resolution],
        base_version_id: str | None,
        reader: Reader | None,
    ) -> tuple[Plan | None, MergeDone]:
        other = await self._sessions.get(source, reader)
        head = state.row.head
        refused = await self._refused(other.head, reader)
        bases = await self._graphs.merge_bases(head, other.head, reader)
        _check_base(base_version_id, bases)
        theirs = await self._graphs.graph(other.root, like=state.graph, reader=reader)
        versions = [await self._graphs.version(base, reader) for base in bases]
        if other.head in bases or (head in bases and not refused):
            if other.head in bases:  # merged before: the same call again, its resolutions included
                return None, MergeDone(head, state.graph, state.graph, True, bases)
            _check_no_conflict(resolutions)
            version = await self._graphs.version(other.head, reader)
            done = MergeDone(None, state.graph, theirs, False, bases)
            self._commits.require_valid([state.graph, theirs], theirs, [])
            planned = self._plan_of(state, other, theirs, versions)
            if version.closed == planned.closed:
                planned = replace(planned, merged=(), adopt=version)
            return planned, done
        grounds = [await self._graphs.graph(v.root, like=state.graph, reader=reader) for v in versions]
        outcome = await in_worker(
            lambda: merge(grounds, state.graph, theirs, self._commits.keys, resolutions)
        )
        if isinstance(outcome, Conflicted):
            raise _Clash(MergeRefused(outcome.conflicts, bases))
        assert isinstance(outcome, Merged)
        done = MergeDone(
            None, state.graph, outcome.graph, False, bases, outcome.dropped_relations, outcome.restored
        )
        # what a refused version holds is judged as if it were written now
        parents = [state.graph] if refused else [state.graph, theirs]
        self._commits.require_valid(parents, outcome.graph, outcome.touched)
        return self._plan_of(state, other, outcome.graph, versions), done

    def _plan_of(self, state: State, other: SessionRow, graph: Graph, bases: Sequence[Version]) -> Plan:
        """The version that a merge makes. Between lines of one session `closed` merges like a field."""
        target, closed = state.row.session_id, state.row.closed
        if line_of(other.session_id) is not None and other.session_id.startswith(f"{target}@"):
            closed = merge_closed([base.closed for base in bases], closed, other.closed)

        async def close_conflicts(unit: Unit, version: Version) -> list[Event]:
            head = version.id.hex()
            return await merged_away(
                unit, self._conflicts, self._graphs, target, other.head, head, self._clock()
            )

        return Plan(graph, closed, merged=(other.head,), generation=other.generation, also=close_conflicts)

    async def revert(self, session_id: str, version_id: str, author: str = "") -> Moved:
        """A new version whose content is that of an earlier one; the history in between stays."""
        check_text(author=author)
        wanted = await self._sessions.version(version_id)
        graph = await self._graphs.graph(wanted.root)

        async def plan(state: State, reader: Reader | None) -> Plan | None:
            if state.row.closed:
                raise closed_error(session_id)
            if graph.root == state.graph.root:
                return None
            if not await self._graphs.is_ancestor(wanted.id, state.row.head, reader):
                raise not_in_history(wanted.id.hex(), session_id)
            touched = [id for id, _, _ in changes(state.graph, graph)]
            self._commits.require_valid([state.graph, graph], graph, touched)
            return Plan(graph, state.row.closed, author, f"Revert to {wanted.id.hex()}")

        return await self._commits.advance(session_id, plan)

    async def close(self, session_id: str, reopen: bool = False, author: str = "") -> Moved:
        """Close a session, or open it again; a version of its own, so that it replicates."""
        check_text(author=author)

        async def plan(state: State, reader: Reader | None) -> Plan | None:
            if state.row.closed is not reopen:
                return None
            return Plan(
                state.graph, not reopen, author, "Reopen the session" if reopen else "Close the session"
            )

        return await self._commits.advance(session_id, plan)


def not_in_history(version_id: str, session_id: str) -> InvalidParameter:
    """The error for a version of another line."""
    return InvalidParameter(
        f"Version {version_id} is not in the history of session {session_id!r}.",
        "Use list_versions of the session to pick one.",
        argument="version_id",
    )


def branch_name(session_id: str, title: str) -> str:
    """A new session id: the parent's, a word of the title, six random hex digits; at most 64 characters."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:20].strip("-")
    stem = "-".join(part for part in (session_id[:36], slug) if part)
    return f"{stem}-{secrets.token_hex(3)}"


def _told(resolutions: Mapping[str, Resolution] | None) -> str:
    if not resolutions:
        return ""
    chosen = [f"{id}: {_named(how)}" for id, how in resolutions.items()]
    shown = ", ".join(chosen[:20])
    return f" (resolved {shown}{', …' if len(chosen) > 20 else ''})"


def _named(how: Resolution) -> str:
    match how:
        case None:
            return "dropped"
        case str():
            return how
        case _:
            return "edited"


def _check_base(base_version_id: str | None, bases: tuple[Hash, ...]) -> None:
    if base_version_id is None:
        return
    computed = bases[0].hex() if bases else FIRST_VERSION.id.hex()
    if len(base_version_id) < 8 or not computed.startswith(base_version_id.lower()):
        raise HeadMoved(
            f"The merge base is {computed}, not {base_version_id[:80]}.",
            "The lines moved since you looked; look at the conflicts again.",
            current_head=computed,
            base_version_id=computed,
        )


def _check_no_conflict(resolutions: Mapping[str, Resolution]) -> None:
    if resolutions:
        named = ", ".join(sorted(resolutions)[:10])
        raise InvalidParameter(
            f"resolutions names {named}, but nothing is in conflict.",
            "Leave resolutions out; the merge is clean.",
            argument="resolutions",
        )
