"""Arguments, results and cursors that several tools share."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import Field

from cks_mcp.answers import fitting
from cks_mcp.arguments import Args
from cks_mcp.plain import dump_json
from cks_mcp.services import Ctx
from cks_mcp.trimming import trimmed
from cks_runtime.flow.remote_lines import check_line_id
from cks_runtime.model.canon import Json
from cks_runtime.model.diff import GraphDiff, changed_json, graph_diff
from cks_runtime.model.errors import InvalidParameter
from cks_runtime.model.graph import Graph
from cks_runtime.model.history import Version
from cks_runtime.model.times import format_ms

__all__ = ["Args"]

IDS_BYTES = 8_000  # 200 ids of usual length; three such lists and a page of details fit one answer
DIAGNOSTIC_BYTES = 4_000
DIAGNOSTICS_BYTES = 20_000
DIAGNOSTICS_MAX = 50


SessionId = Annotated[str | None, Field(description="Default: the default session.")]
Limit = Annotated[int, Field(ge=1, le=500)]
Cursor = Annotated[str | None, Field(description="next_cursor of the page before.")]
VersionId = Annotated[str, Field(description="64 hex digits, or 8 or more where unique.")]
Text = Annotated[str, Field(max_length=4000)]
Changed = Annotated[
    dict[str, Any], Field(description="{added, updated, removed: {count, ids}}, the first 200 ids of each.")
]

T = TypeVar("T", bound=Mapping[str, Any])


def session_or_default(ctx: Ctx, session_id: str | None) -> str:
    """The named session (or other side of a conflict), else the default one.

    Raises InvalidParameter for a name that neither can have.
    """
    return ctx.app.rt.config.default_session if session_id is None else check_line_id(session_id)


def changed(before: Graph, after: Graph) -> dict[str, Any]:
    """What a write or comparison tells about objects."""
    return changed_of(graph_diff(before, after))


def changed_of(diff: GraphDiff) -> dict[str, Any]:
    """The same of a diff that is there already; very long ids make the lists shorter, never the counts."""
    told: dict[str, Any] = changed_json(diff)
    return {
        label: {"count": part["count"], "ids": cut_ids(part["ids"], IDS_BYTES)}
        for label, part in told.items()
    }


def cut_ids(ids: Iterable[Any], budget: int) -> list[Any]:
    """The first ids that take at most `budget` bytes; unlike items of a page, none where none fits."""
    shown: list[Any] = []
    for id in ids:
        budget -= len(dump_json(id)) + 1
        if budget < 0:
            break
        shown.append(id)
    return shown


def page_of(items: Sequence[T], budget: int) -> list[Any]:
    """The first items that fit `budget` bytes, one at least: where the first is too long by itself, it is trimmed.

    A page so never ends in a `too_large` that no smaller limit could get past.
    """
    shown = list(items[: fitting(items, budget)])
    return [trimmed(dict(shown[0]), budget)] if len(shown) == 1 else shown


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


def to_cursor(kind: str, value: Json, *scope: object) -> str:
    """An opaque place in one list: of a kind, and of the arguments in `scope`."""
    return base64.urlsafe_b64encode(orjson.dumps([_name(kind, scope), value])).decode().rstrip("=")


def from_cursor(kind: str, cursor: str | None, shape: type, *scope: object) -> Any:
    """The place a cursor stands for, None without one. Raises InvalidParameter for a cursor of another list."""
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        found = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        found = None
    match found:
        case [name, value] if name == _name(kind, scope) and isinstance(value, shape) and _sane(value):
            return value
        case _:
            raise wrong_cursor(cursor)


def wrong_cursor(cursor: str) -> InvalidParameter:
    """The error for a cursor that the list did not give."""
    return InvalidParameter(
        f"cursor {cursor[:80]!r} is not one that this list gave.",
        "Leave cursor out to start again, and pass next_cursor as it was returned, with the same arguments.",
        argument="cursor",
    )


def _name(kind: str, scope: tuple[object, ...]) -> str:
    if not scope:
        return kind
    return f"{kind}-{hashlib.sha256(orjson.dumps(scope)).hexdigest()[:12]}"


def _sane(value: Any) -> bool:
    # what no list ever gives, and a database could not compare with
    return not isinstance(value, bool) and (not isinstance(value, int) or 0 <= value < 1 << 62)


def page_of_diagnostics(diagnostics: Sequence[Mapping[str, Json]], limit: int = DIAGNOSTICS_MAX) -> list[Any]:
    """The first diagnostics that fit an answer; one that names very many objects is trimmed."""
    shown = [trimmed(dict(diagnostic), DIAGNOSTIC_BYTES) for diagnostic in diagnostics[:limit]]
    return shown[: fitting(shown, DIAGNOSTICS_BYTES)]
