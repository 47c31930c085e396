"""Documents as resources, `doc:///team/plan.md`."""

from __future__ import annotations

from cks_mcp.resources import Resources
from cks_mcp.services import Ctx
from cks_runtime.flow.documents import Archived
from cks_runtime.model.errors import DocumentNotFound


def register(resources: Resources) -> None:
    """Declare the template that every document stands under."""

    @resources.template(
        "doc://{+path}",
        name="document",
        description="A document's text, for instance doc:///team/plan.md, or doc:///team/plan.md/v3 for a version.",
        mime_type="text/markdown",
        unlimited=True,
    )
    async def document(ctx: Ctx, path: str) -> str:
        found = await ctx.app.rt.documents.fetch(path)
        if isinstance(found, Archived):
            raise DocumentNotFound(
                f"Document {found.head.path!r} is archived at version {found.head.version}.",
                "Bring it back with mark_archive unarchive=true, or read an earlier version, path/v<number>.",
                path=found.head.path,
                version=found.head.version,
            )
        return found.body
