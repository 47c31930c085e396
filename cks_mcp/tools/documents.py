"""Tools for documents: read, publish, append, list, archive. Lost races are answered by `candidates`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from cks_mcp.answers import Answer, Result, fitting
from cks_mcp.arguments import Args
from cks_mcp.calls import Toolset
from cks_mcp.services import Ctx
from cks_mcp.tools.candidates import candidate_for
from cks_mcp.tools.common import Cursor, Limit, from_cursor, to_cursor
from cks_mcp.tools.front_matter import front_matter
from cks_runtime.flow.documents import Archived, Fetched, Lost, Stands, Written
from cks_runtime.flow.graphs import in_worker
from cks_runtime.model.documents import DocumentVersion, check_path, count_lines, has_controls, line_window
from cks_runtime.model.times import format_ms

documents = Toolset("documents")

WINDOW_INLINE_MAX = 100_000

Path = Annotated[str, Field(description="Absolute, for instance /team/plan.md.")]
Version = Annotated[int, Field(ge=0)]


class FetchArgs(Args):
    path: Annotated[str, Field(description="/team/plan.md, or /team/plan.md/v3 for a version.")]
    from_line: Annotated[int | None, Field(ge=1, le=2_000_000, description="Counted from 1.")] = None
    max_lines: Annotated[int | None, Field(ge=1, le=2_000_000)] = None


class DocumentRead(Result):
    """The body stands in the text block only."""

    status: Literal["ok", "archived"]
    path: str
    version: int
    modified: str | None = None
    content_hash: str | None = None
    author: str | None = None
    from_line: int | None = None
    lines: int | None = None
    total_lines: int | None = None


@documents.tool(read_only=True)
async def mark_fetch(ctx: Ctx, args: FetchArgs) -> Answer[DocumentRead]:
    """Read a document: the text block has version, time and hash, a blank line, then the body as it is.

    Use it before mark_publish, whose expected_version is the version read here. Long ones: from_line, max_lines.
    """
    found = await ctx.app.rt.documents.fetch(args.path)
    if isinstance(found, Archived):
        told: dict[str, Any] = {"status": "archived", "version": found.head.version}
        return Answer(DocumentRead(path=found.head.path, **told), front_matter(told))
    fields = {"status": "ok", **_stamp(found.version)}
    body, window = await _window(found, args)
    text = front_matter({**fields, **{key.replace("_", "-"): value for key, value in window.items()}}, body)
    read = DocumentRead.model_validate(
        {**_snake(fields), **window, "path": found.version.path, "author": found.version.author}
    )
    return Answer(read, text, unlimited=True)


async def _window(found: Fetched, args: FetchArgs) -> tuple[str, dict[str, int]]:
    if args.from_line is None and args.max_lines is None:
        return found.body, {}
    first, whole = args.from_line or 1, found.body

    def cut() -> tuple[str, dict[str, int]]:
        body = line_window(whole, first, args.max_lines)
        return body, {"from_line": first, "lines": count_lines(body), "total_lines": count_lines(whole)}

    return cut() if len(whole) <= WINDOW_INLINE_MAX else await in_worker(cut)


class PublishArgs(Args):
    path: Path
    body: Annotated[str, Field(description="The whole new text, at most 1 MiB.")]
    expected_version: Annotated[int, Field(ge=0, description="The version it was made from; 0: create only.")]
    on_conflict: Literal["merge", "fail"] = "merge"
    author: Annotated[
        str | None, Field(max_length=200, description="Default: client name and replica id.")
    ] = None


class DocumentAppended(Result):
    """ok: version, modified, content_hash. Otherwise your_version and current_version."""

    status: Literal["ok", "conflict", "archived", "merge-candidate"]
    path: str
    version: int | None = None
    modified: str | None = None
    content_hash: str | None = None
    no_op: bool | None = None
    your_version: int | None = None
    current_version: int | None = None


class DocumentWritten(DocumentAppended):
    """ok: version, modified, content_hash. Otherwise your_version and current_version; a candidate has the rest.

    Line ranges are {first, last}, counted from 1, both included; an empty range has last = first - 1.
    """

    reason: str | None = None
    publish_at_version: int | None = None
    has_markers: bool | None = None
    base_version: int | None = None
    marker_width: int | None = None
    conflicts: list[dict[str, Any]] | None = None
    conflicts_total: int | None = None
    changes: dict[str, Any] | None = None
    intervening: list[dict[str, Any]] | None = None
    intervening_total: int | None = None
    warnings: list[dict[str, Any]] | None = None


@documents.tool(idempotent=True)
async def mark_publish(ctx: Ctx, args: PublishArgs) -> Answer[DocumentWritten]:
    """Publish a document's whole text as the version after expected_version.

    When somebody else published first, nothing is written and the answer is a merge-candidate: check that its text
    makes sense (resolve markers if has-markers), then publish it at publish-at-version. on_conflict=fail only tells.
    To add lines at the end use mark_append.
    """
    documents = ctx.app.rt.documents
    author = _author(ctx, args.author)
    written = await documents.publish(args.path, args.body, args.expected_version, author)
    if isinstance(written, Lost) and args.on_conflict == "merge":
        made = await candidate_for(documents, written.head, args.expected_version, args.body)
        result = DocumentWritten.model_validate({"path": args.path, **_snake(made.fields), **made.details})
        return Answer(result, front_matter({**made.fields, **made.notes}, made.body), unlimited=True)
    return _written(written, args.expected_version)


class AppendArgs(Args):
    path: Path
    body: Annotated[str, Field(description="Put on a new line after the present text.")]
    expected_version: Annotated[int | None, Field(ge=0, description="Refuse unless this is the version.")] = (
        None
    )


@documents.tool()
async def mark_append(ctx: Ctx, args: AppendArgs) -> Answer[DocumentAppended]:
    """Add text at the end of a document that exists. Needs no version: appends at the same time are all kept.

    Use it for logs and lists that several agents fill; for any other change use mark_publish.
    """
    written = await ctx.app.rt.documents.append(
        args.path, args.body, args.expected_version, _author(ctx, None)
    )
    return _written(written, args.expected_version)


def _written(written: Written, expected_version: int | None) -> Answer[DocumentWritten]:
    match written:
        case Stands(version, made):
            fields: dict[str, Any] = {"status": "ok", **_stamp(version)}
            more: dict[str, Any] = {"no_op": not made}
        case Archived(version):
            fields, more = {"status": "archived", "version": version.version}, {}
        case Lost(version):
            fields = {
                "status": "conflict",
                "your-version": expected_version,
                "current-version": version.version,
            }
            more = {}
    result = DocumentWritten.model_validate({"path": version.path, **_snake(fields), **more})
    return Answer(result, front_matter(fields))


class VersionsArgs(Args):
    path: Path
    limit: Limit = 50
    cursor: Cursor = None


class DocumentVersions(Result):
    status: Literal["ok"]
    path: str
    current: int
    chain_valid: bool
    chain_error: str | None = None
    versions: list[dict[str, Any]]
    next_cursor: str | None = None


@documents.tool(read_only=True)
async def mark_versions(ctx: Ctx, args: VersionsArgs) -> Answer[DocumentVersions]:
    """A document's history, newest first: who wrote what when. Checks the whole hash chain and every stored body.

    To read one of them use mark_fetch with path/v<number>.
    """
    below = from_cursor("document-versions", args.cursor, int)
    chain = await ctx.app.rt.documents.versions(args.path, args.limit, below)
    shown = [_version_json(version) for version in chain.versions]
    shown = shown[: fitting(shown)]
    more = bool(shown) and shown[-1]["version"] > 1
    fields = {
        "status": "ok",
        "current": chain.current,
        "chain-valid": chain.error is None,
        "chain-error": chain.error,
        "next-cursor": to_cursor("document-versions", shown[-1]["version"]) if more else None,
    }
    lines = "".join(
        f"- v{one['version']} {one['modified']} {one['content_hash']}{' archived' if one['archived'] else ''}"
        f" {one['author']}\n"
        for one in shown
    )
    result = DocumentVersions.model_validate({**_snake(fields), "path": args.path, "versions": shown})
    return Answer(result, front_matter(fields, lines))


class ListArgs(Args):
    prefix: Annotated[str, Field(description="Plain beginning of paths.")] = "/"
    limit: Limit = 50
    cursor: Cursor = None


class DocumentList(Result):
    status: Literal["ok"]
    paths: list[dict[str, Any]]
    next_cursor: str | None = None


@documents.tool(read_only=True)
async def mark_list(ctx: Ctx, args: ListArgs) -> Answer[DocumentList]:
    """The documents whose path begins with a prefix, by path; archived ones too."""
    after = from_cursor("documents", args.cursor, str)
    if after is not None:
        check_path(after)
    heads = await ctx.app.rt.documents.page(args.prefix, args.limit + 1, after or "")
    shown: list[dict[str, Any]] = [
        {
            "path": head.path,
            "version": head.version,
            "modified": format_ms(head.at_ms),
            "archived": head.archived,
        }
        for head in heads[: args.limit]
    ]
    shown = shown[: fitting(shown)]
    fields = {
        "status": "ok",
        "next-cursor": to_cursor("documents", shown[-1]["path"]) if len(shown) < len(heads) else None,
    }
    lines = "".join(
        f"- {one['path']} v{one['version']} {one['modified']}{' archived' if one['archived'] else ''}\n"
        for one in shown
    )
    return Answer(
        DocumentList.model_validate({**_snake(fields), "paths": shown}), front_matter(fields, lines)
    )


class ArchiveArgs(Args):
    path: Path
    unarchive: Annotated[bool, Field(description="Bring the last text back.")] = False


class DocumentArchived(Result):
    status: Literal["ok"]
    path: str
    version: int
    archived: bool
    no_op: bool


@documents.tool(idempotent=True)
async def mark_archive(ctx: Ctx, args: ArchiveArgs) -> Answer[DocumentArchived]:
    """Hide a document, or with unarchive=true bring it back. Both are versions of their own; nothing is deleted."""
    written = await ctx.app.rt.documents.archive(args.path, args.unarchive, _author(ctx, None))
    assert isinstance(written, Stands), "archiving expects no version, so it cannot lose"
    version = written.version
    fields = {"status": "ok", "version": version.version, "archived": version.archived}
    result = DocumentArchived.model_validate({**fields, "path": version.path, "no_op": not written.made})
    return Answer(result, front_matter(fields))


def _stamp(version: DocumentVersion) -> dict[str, Any]:
    return {
        "version": version.version,
        "modified": format_ms(version.at_ms),
        "content-hash": f"sha256-{version.content.hex()}",
    }


def _version_json(version: DocumentVersion) -> dict[str, Any]:
    return {
        "version": version.version,
        "author": version.author,
        "modified": format_ms(version.at_ms),
        "content_hash": f"sha256-{version.content.hex()}",
        "hash": version.hash.hex(),
        "previous_hash": None if version.previous is None else version.previous.hex(),
        "archived": version.archived,
    }


def _snake(fields: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("-", "_"): value for key, value in fields.items()}


def _author(ctx: Ctx, given: str | None) -> str:
    author = ctx.app.author(ctx, given)
    if given is None and has_controls(author):
        # a client cannot choose another name for itself, so its odd one must not stop it from writing
        return "".join(" " if has_controls(character) else character for character in author)
    return author
