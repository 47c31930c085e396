"""How a resource is declared and read: JSON (or text) under a fixed URI or a URI template."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.shared.uri_template import UriTemplate
from mcp_types import Resource as ListedResource
from mcp_types import ResourceTemplate as ListedTemplate
from pydantic import BaseModel

from cks_mcp.answers import ROOM_BYTES, as_json
from cks_mcp.calls import ToolContext
from cks_mcp.plain import dump_json, scrub_text, shorten_name
from cks_mcp.trimming import trimmed
from cks_runtime.model.errors import ObjectNotFound

JSON_TYPE = "application/json"
URI_BYTES_MAX = 4096

ReadFunction = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Contents:
    """What reading a resource gives."""

    text: str
    mime_type: str


@dataclass(frozen=True, slots=True)
class _Declared:
    uri: str
    name: str
    description: str
    mime_type: str
    unlimited: bool
    function: ReadFunction


class Resources:
    """The resources of one server.

    ```python
    resources = Resources()

    @resources.resource("cks://conflicts/gossip", description="Open gossip conflicts.")
    async def gossip(ctx: ToolContext[Runtime]) -> dict[str, Any]: ...

    @resources.template("cks://sessions/{id}", description="A session's head and counts.")
    async def session(ctx: ToolContext[Runtime], id: str) -> SessionView: ...
    ```

    A function returns text, JSON or a pydantic model; CksErrors become JSON-RPC errors that carry their code.
    """

    def __init__(self) -> None:
        self._fixed: dict[str, _Declared] = {}
        self._templates: list[tuple[UriTemplate, _Declared]] = []

    def resource(
        self,
        uri: str,
        *,
        description: str,
        name: str | None = None,
        mime_type: str = JSON_TYPE,
        unlimited: bool = False,
    ) -> Callable[[ReadFunction], ReadFunction]:
        """Declare what stands at one URI. Raises ValueError when the URI is taken."""

        def register(function: ReadFunction) -> ReadFunction:
            if uri in self._fixed:
                raise ValueError(f"resource {uri} is declared twice")
            self._fixed[uri] = _Declared(uri, name or uri, description, mime_type, unlimited, function)
            return function

        return register

    def template(
        self,
        uri: str,
        *,
        description: str,
        name: str | None = None,
        mime_type: str = JSON_TYPE,
        unlimited: bool = False,
    ) -> Callable[[ReadFunction], ReadFunction]:
        """Declare what stands at every URI of an RFC 6570 template; its variables are keyword arguments."""

        def register(function: ReadFunction) -> ReadFunction:
            declared = _Declared(uri, name or uri, description, mime_type, unlimited, function)
            self._templates.append((UriTemplate.parse(uri), declared))
            return function

        return register

    def listed(self) -> list[ListedResource]:
        """The entries of `resources/list`."""
        return [
            ListedResource(uri=one.uri, name=one.name, description=one.description, mime_type=one.mime_type)
            for one in self._fixed.values()
        ]

    def listed_templates(self) -> list[ListedTemplate]:
        """The entries of `resources/templates/list`."""
        return [
            ListedTemplate(
                uri_template=one.uri, name=one.name, description=one.description, mime_type=one.mime_type
            )
            for _, one in self._templates
        ]

    async def read(self, uri: str, ctx: ToolContext[Any]) -> Contents:
        """Raises ObjectNotFound when no resource stands at the URI, and what its function raises."""
        declared, variables = self._find(uri)
        value = await declared.function(ctx, **variables)
        if isinstance(value, str):
            return Contents(scrub_text(value), declared.mime_type)
        body = as_json(value) if isinstance(value, BaseModel) else value
        if isinstance(body, dict) and not declared.unlimited:
            body = trimmed(body, ROOM_BYTES // 2)
        return Contents(dump_json(body).decode(), declared.mime_type)

    def _find(self, uri: str) -> tuple[_Declared, Mapping[str, Any]]:
        if (fixed := self._fixed.get(uri)) is not None:
            return fixed, {}
        if len(uri) <= URI_BYTES_MAX:
            for template, declared in self._templates:
                if (variables := template.match(uri)) is not None:
                    return declared, variables
        known = ", ".join([*self._fixed, *(one.uri for _, one in self._templates)])
        raise ObjectNotFound(
            f"there is no resource '{shorten_name(uri)}'", f"resources here: {known}", uri=uri[:200]
        )
