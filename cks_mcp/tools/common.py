"""Arguments, results and cursors that several tools share."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any

import orjson
from pydantic import Field

from cks_mcp.answers import Result
from cks_mcp.arguments import Args
from cks_mcp.services import Ctx
from cks_runtime.model.canon import Json
from cks_runtime.model.diff import GraphDiff, changed_json, graph_diff
from cks_runtime.model.errors import InvalidParameter
from cks_runtime.model.graph import Graph
from cks_runtime.model.history import Version
from cks_runtime.model.knowledge import check_session_id
from cks_runtime.model.times import format_ms

__all__ = ["Args"]

DIAGNOSTICS_MAX = 50


SessionId = Annotated[str | None, Field(description="Default: the default session.")]
Limit = Annotated[int, Field(ge=1, le=500)]
Cursor = Annotated[str | None, Field(description="next_cursor of the page before.")]
VersionId = Annotated[str, Field(description="64 hex digits, or 8 or more where unique.")]
Text = Annotated[str, Field(max_length=4000)]


class Ids(Result):
    count: int
    ids: list[str]


class Changed(Result):
    """How many objects changed, and the first 200 ids of each."""

    added: Ids
    updated: Ids
    removed: Ids


def session_or_default(ctx: Ctx, session_id: str | None) -> str:
    """The named session, else the default one. Raises InvalidParameter for a name no session can have."""
    return ctx.app.rt.config.default_session if session_id is None else check_session_id(session_id)


def changed(before: Graph, after: Graph) -> Changed:
    """What a write or comparison tells about objects."""
    return changed_of(graph_diff(before, after))


def changed_of(diff: GraphDiff) -> Changed:
    """The same of a diff that is there already."""
    return Changed.model_validate(changed_json(diff))


def version_json(version: Version) -> dict[str, Json]:
    """A version as answers show it."""
    return {
        "version_id": version.id.hex(),
        "parents": [parent.hex() for parent in version.parents],
        "author": version.author,
        "message": version.message,
        "created_at": format_ms(version.created_at_ms),
        "closed": version.closed,
    }


def to_cursor(kind: str, value: Json) -> str:
    """An opaque place in a list of one kind."""
    return base64.urlsafe_b64encode(orjson.dumps([kind, value])).decode().rstrip("=")


def from_cursor(kind: str, cursor: str | None, shape: type | tuple[type, ...]) -> Any:
    """The place a cursor stands for, None without one. Raises InvalidParameter for a cursor of another list."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        found = None
    if not (isinstance(found, list) and len(found) == 2 and found[0] == kind and isinstance(found[1], shape)):
        raise InvalidParameter(
            f"cursor {cursor[:80]!r} is not one that this list gave.",
            "Leave cursor out to start again, and pass next_cursor as it was returned.",
            argument="cursor",
        )
    return found[1]


def first(diagnostics: list[Mapping[str, Json]], limit: int = DIAGNOSTICS_MAX) -> list[dict[str, Any]]:
    """The first diagnostics, as plain JSON."""
    return [dict(diagnostic) for diagnostic in diagnostics[:limit]]
