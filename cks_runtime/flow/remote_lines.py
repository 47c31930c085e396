"""The other side of a conflict, read as `<session>@<replica>`; and what a merge of it closes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cks_runtime.flow.conflicts import Conflicts
from cks_runtime.flow.graphs import Graphs
from cks_runtime.model.canon import Hash
from cks_runtime.model.events import Event
from cks_runtime.model.gossip_heads import REPLICA_ID
from cks_runtime.model.gossip_merge import line_id
from cks_runtime.model.history import Version
from cks_runtime.model.knowledge import SESSION_ID, check_session_id
from cks_runtime.store import gossip as rows
from cks_runtime.store.conflicts import ClaimRow
from cks_runtime.store.gossip import RemoteHead
from cks_runtime.store.ports import Unit
from cks_runtime.store.sessions import SessionRow


async def merged_away(
    unit: Unit,
    conflicts: Conflicts,
    graphs: Graphs,
    session_id: str,
    head: Hash,
    version_id: str,
    now_ms: int,
) -> list[Event]:
    """Inside the unit that merges `head` into a session: the other heads this takes in go, and their conflicts
    close. The events.
    """
    remote = await rows.remote_heads(unit, session_id)
    gone = {one.head for one in remote if await graphs.is_ancestor(one.head, head, unit)}
    if not gone:
        return []
    await rows.remove_remote_heads(unit, session_id, gone)
    return await conflicts.close_where(
        unit,
        "gossip",
        session_id,
        version_id,
        lambda claim: _sources(claim) <= {one.hex() for one in gone},
        "resolved",
        now_ms,
    )


def _sources(claim: ClaimRow) -> set[str]:
    sources = claim.body.get("source_heads")
    return {str(source) for source in sources} if isinstance(sources, list) else set()


def line_of(session_id: str) -> tuple[str, str] | None:
    """The session and replica that a line's name is made of; None for the name of a session."""
    session, mark, replica = session_id.partition("@")
    return (session, replica) if mark else None


def check_line_id(text: str, argument: str = "session_id") -> str:
    """`text` if it can name a session or the other side of a conflict. Raises InvalidParameter, naming the argument."""
    session, mark, replica = text.partition("@")
    if mark and REPLICA_ID.fullmatch(replica) and SESSION_ID.fullmatch(session):
        return text
    return check_session_id(text, argument)


def named(remote: Sequence[RemoteHead], replica: str) -> RemoteHead | None:
    """The row of an open conflict that is read under this replica's name; its own before one it took over."""
    held = [one for one in remote if one.record_id is not None and replica in one.names]
    return min(held, key=lambda one: (one.holder != replica, one.head), default=None)


def as_line(row: SessionRow, one: RemoteHead, replica: str, version: Version, generation: int) -> SessionRow:
    """The other side of a conflict as a session that can be read."""
    return replace(
        row,
        session_id=line_id(row.session_id, replica),
        head=one.head,
        root=version.root,
        closed=version.closed,
        generation=generation,
    )
