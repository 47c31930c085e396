"""The resources of the server, and which of them an event touches."""

from __future__ import annotations

from typing import Any

from cks_mcp import document_views
from cks_mcp.answers import fitting
from cks_mcp.resources import Resources
from cks_mcp.services import Ctx
from cks_mcp.tools.common import version_json
from cks_mcp.tools.conflicts import record_json

KINDS = ("gossip", "inference", "temporal", "provenance")
PAGE = 200


def build_resources() -> Resources:
    """Open conflicts by kind, sessions by id, and documents by path."""
    resources = Resources()
    document_views.register(resources)
    for kind in KINDS:
        _conflicts_of(resources, kind)

    @resources.template("cks://sessions/{id}", description="A session: head, state, size and open conflicts.")
    async def session(ctx: Ctx, id: str) -> dict[str, Any]:
        rt = ctx.app.rt
        row = await rt.sessions.get(id)
        records = await rt.conflicts.of_session(id)
        return {
            "session_id": row.session_id,
            "title": row.title,
            "state": "closed" if row.closed else "open",
            "head": version_json(await rt.graphs.version(row.head)),
            "objects": (await rt.sessions.sizes([row.root]))[row.root],
            "open_conflicts": [{"record_id": r.record_id, "kind": r.kind} for r in records],
        }

    return resources


def _conflicts_of(resources: Resources, kind: str) -> None:
    @resources.resource(
        f"cks://conflicts/{kind}", description=f"Open {kind} conflicts, oldest first; reading never drains."
    )
    async def read(ctx: Ctx) -> dict[str, Any]:
        records = await ctx.app.rt.conflicts.page(kind, "open", None, 0, PAGE)
        shown = [record_json(record) for record in records]
        count = fitting(shown)
        total = (await ctx.app.rt.conflicts.count_open()).get(kind, 0)
        return {"count": count, "total": total, "conflicts": shown[:count]}
