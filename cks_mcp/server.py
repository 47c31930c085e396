"""Joins tools, resources and subscriptions to the SDK's server.

On the lowlevel `Server`, not on `MCPServer`: that one parses strings in arguments as JSON, coerces and ignores
arguments and words its errors before a tool of ours is reached, always advertises prompts, and reconfigures logging.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    EmptyResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SubscribeRequestParams,
    TextResourceContents,
    UnsubscribeRequestParams,
)
from pydantic import ValidationError

from cks_mcp.calls import ToolContext, Tools, describe_error
from cks_mcp.plain import scrub_text
from cks_mcp.resources import Resources
from cks_mcp.stdio import RequestSize
from cks_mcp.subscriptions import ResourceUpdates
from cks_runtime.model.errors import CksError

App = TypeVar("App")
Lifespan = Callable[[], AbstractAsyncContextManager[App]]


def build_server(
    *,
    name: str,
    version: str,
    instructions: str,
    offer: Offer | Callable[[], Offer],
    updates: ResourceUpdates,
    lifespan: Lifespan[App],
) -> Server[App]:
    """A server for any transport. `lifespan` opens what tools get as `ctx.app`; `updates` is run around it.

    An `offer` that is still to be made is made, in a worker thread, when the first client asks for it: loading every
    tool takes longer than a start may.
    """
    handlers = _Handlers(offer, updates)

    @asynccontextmanager
    async def whole_lifespan(_: Server[App]) -> AsyncIterator[App]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(updates.run)
            async with lifespan() as app:
                yield app
            tasks.cancel_scope.cancel()

    server: Server[App] = Server(
        name,
        version=version,
        instructions=instructions,
        lifespan=whole_lifespan,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_subscribe_resource=handlers.subscribe,
        on_unsubscribe_resource=handlers.unsubscribe,
        on_subscriptions_listen=ListenHandler(updates.bus),
    )
    server.middleware.insert(0, _keep_faults_inside)
    server.middleware.append(_keep_arguments)
    return server


class _Call(dict[str, Any]):
    """Parameters of a tool call that pass every check of the SDK, with what the caller really sent beside them."""

    sent: Mapping[str, Any]


async def _keep_arguments(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Keep name and arguments of a call from the SDK's checks, which would answer in other words than ours."""
    if ctx.method != "tools/call" or ctx.request_id is None:
        return await call_next(ctx)
    sent = ctx.params or {}
    name = sent.get("name")
    checked = {key: value for key, value in sent.items() if key == "_meta"}
    params = _Call(checked, name=scrub_text(name) if isinstance(name, str) else "", arguments={})
    params.sent = sent
    return await call_next(replace(ctx, params=params))


async def _keep_faults_inside(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """An exception nobody expected becomes an error with an id; the SDK would send its text to the client."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        raise
    except Exception as error:
        raise _protocol_error(describe_error(error, method=ctx.method)) from error


def _protocol_error(error: CksError) -> MCPError:
    internal = error.code == "internal_error"
    return MCPError(
        INTERNAL_ERROR if internal else INVALID_PARAMS, scrub_text(error.message), error.as_json()
    )


@dataclass(frozen=True, slots=True)
class Offer:
    """What a server has for its clients."""

    tools: Tools
    resources: Resources


class _Handlers:
    def __init__(self, offer: Offer | Callable[[], Offer], updates: ResourceUpdates) -> None:
        self._offered = offer
        self._making = anyio.Lock()
        self._updates = updates

    async def _offer(self) -> Offer:
        if isinstance(self._offered, Offer):
            return self._offered
        async with self._making:
            if not isinstance(self._offered, Offer):
                self._offered = await anyio.to_thread.run_sync(self._offered)
        return self._offered

    async def list_tools(
        self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        _refuse_cursor(params)
        return ListToolsResult(tools=(await self._offer()).tools.listed())

    async def call_tool(self, ctx: ServerRequestContext[Any], params: CallToolRequestParams) -> Any:
        sent: Mapping[str, Any] = ctx.params.sent if isinstance(ctx.params, _Call) else ctx.params or {}
        size = ctx.request.size_bytes if isinstance(ctx.request, RequestSize) else 0
        return await (await self._offer()).tools.call(
            sent.get("name"), sent.get("arguments", {}), _context(ctx), request_bytes=size
        )

    async def list_resources(
        self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        _refuse_cursor(params)
        return ListResourcesResult(resources=(await self._offer()).resources.listed())

    async def list_templates(
        self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        _refuse_cursor(params)
        return ListResourceTemplatesResult(
            resource_templates=(await self._offer()).resources.listed_templates()
        )

    async def read_resource(
        self, ctx: ServerRequestContext[Any], params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        try:
            contents = await (await self._offer()).resources.read(str(params.uri), _context(ctx))
        except Exception as error:
            raise _protocol_error(describe_error(error, uri=str(params.uri)[:200])) from error
        return ReadResourceResult(
            contents=[TextResourceContents(uri=params.uri, text=contents.text, mime_type=contents.mime_type)]
        )

    async def subscribe(self, ctx: ServerRequestContext[Any], params: SubscribeRequestParams) -> EmptyResult:
        if not self._updates.subscribe(ctx.session, str(params.uri)):
            raise MCPError(INVALID_PARAMS, "too many subscriptions on this connection")
        return EmptyResult()

    async def unsubscribe(
        self, ctx: ServerRequestContext[Any], params: UnsubscribeRequestParams
    ) -> EmptyResult:
        self._updates.unsubscribe(ctx.session, str(params.uri))
        return EmptyResult()


def _refuse_cursor(params: PaginatedRequestParams | None) -> None:
    # These lists are short and come whole, so no cursor of ours is around.
    if params is not None and params.cursor is not None:
        raise MCPError(INVALID_PARAMS, "this list has one page: call it without a cursor")


def _context(ctx: ServerRequestContext[Any]) -> ToolContext[Any]:
    client = ctx.session.client_params
    name = client.client_info.name if client is not None else ""
    return ToolContext(
        app=ctx.lifespan_context,
        client_name=name[:200],
        request_id=ctx.request_id,
        progress=ctx.session.report_progress,
    )
