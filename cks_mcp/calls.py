"""How a tool is declared and called.

A tool is an async function from a context and a checked arguments model to a result model. Whatever happens inside
becomes an answer of one form: a result, or `{code, message, hint, details}` with `isError`.
"""

from __future__ import annotations

import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from mcp_types import Tool as ListedTool
from mcp_types import ToolAnnotations
from pydantic import BaseModel

from cks_mcp.answers import Answer, failure, success
from cks_mcp.arguments import check_arguments, unknown_tool
from cks_mcp.schemas import input_schema, output_schema
from cks_runtime.flow.graphs import in_worker
from cks_runtime.model.errors import CksError, InternalError, TooLarge

log = logging.getLogger(__name__)

App = TypeVar("App")


Progress = Callable[[float, float | None, str | None], Awaitable[None]]
"""(progress so far, total where known, a line for people); nothing happens unless the client asked for it."""


async def _no_progress(progress: float, total: float | None, message: str | None) -> None:
    """For calls that nobody watches."""


@dataclass(frozen=True, slots=True)
class ToolContext(Generic[App]):
    """What a call knows beside its arguments: `app` is what the server's lifespan opened."""

    app: App
    client_name: str = ""
    request_id: str | int | None = None
    progress: Progress = _no_progress


ToolFunction = Callable[[ToolContext[Any], Any], Awaitable[Any]]
F = TypeVar("F", bound=ToolFunction)


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared tool. `read_only` also decides what happens to an answer that is too long (see `success`)."""

    name: str
    description: str
    function: ToolFunction
    args: type[BaseModel]
    result: type[BaseModel]
    annotations: ToolAnnotations

    def listed(self) -> ListedTool:
        """The entry of `tools/list`."""
        return ListedTool(
            name=self.name,
            description=self.description,
            input_schema=input_schema(self.args),
            output_schema=output_schema(self.result),
            annotations=self.annotations,
        )


class Toolset:
    """A named group of tools that can be switched on or off as one.

    ```python
    core = Toolset("core")

    @core.tool(read_only=True, idempotent=True)
    async def list_sessions(ctx: ToolContext[Runtime], args: ListSessions) -> Sessions:
        \"\"\"List the sessions. Use it to find a session id; for the versions of one use list_versions.\"\"\"
    ```
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.tools: dict[str, Tool] = {}

    def tool(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        read_only: bool = False,
        destructive: bool = False,
        idempotent: bool = False,
        open_world: bool = False,
    ) -> Callable[[F], F]:
        """Register an async function; name and description default to its name and docstring.

        The models are read off its annotations: `args: Model` and `-> Model` or `-> Answer[Model]`.
        Raises ValueError for a second tool of the name, TypeError for other annotations.
        """

        def register(function: F) -> F:
            args, result = _models(function)
            made = Tool(
                name=name or function.__name__,
                description=description or inspect.cleandoc(function.__doc__ or ""),
                function=function,
                args=args,
                result=result,
                annotations=ToolAnnotations(
                    read_only_hint=read_only,
                    destructive_hint=destructive,
                    idempotent_hint=idempotent or read_only,
                    open_world_hint=open_world,
                ),
            )
            if made.name in self.tools:
                raise ValueError(f"tool {made.name} is declared twice")
            self.tools[made.name] = made
            return function

        return register


def _models(function: Callable[..., Any]) -> tuple[type[BaseModel], type[BaseModel]]:
    # Only these two are resolved: the context's type may be imported for checking alone.
    wanted = {key: value for key, value in function.__annotations__.items() if key in ("args", "return")}
    hints = get_type_hints(
        SimpleNamespace(__annotations__=wanted), globalns=getattr(function, "__globals__", {})
    )
    args, result = hints.get("args"), hints.get("return")
    if get_origin(result) is Answer:
        result = get_args(result)[0]
    for found in (args, result):
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            raise TypeError(f"{function.__qualname__} must be (ctx, args: Model) -> Model or Answer[Model]")
    return args, result  # type: ignore[return-value]


class Tools:
    """The tools one server offers."""

    def __init__(self, toolsets: Iterable[Toolset], *, request_bytes_max: int = 5_000_000) -> None:
        """Raises ValueError when two toolsets have a tool of one name."""
        self._request_bytes_max = request_bytes_max
        self._tools: dict[str, Tool] = {}
        self._listed: list[ListedTool] | None = None
        for toolset in toolsets:
            for name, tool in toolset.tools.items():
                if name in self._tools:
                    raise ValueError(f"tool {name} is in two toolsets")
                self._tools[name] = tool

    def listed(self) -> list[ListedTool]:
        """The entries of `tools/list`, made once: building every schema takes longer than a start may."""
        if self._listed is None:
            self._listed = [tool.listed() for tool in self._tools.values()]
        return self._listed

    async def call(
        self, name: object, arguments: object, ctx: ToolContext[Any], *, request_bytes: int = 0
    ) -> dict[str, Any]:
        """The wire form of the answer. Raises nothing but cancellation."""
        started = time.perf_counter()
        try:
            answer = await self._call(name, arguments, ctx, request_bytes)
            outcome = "ok"
        except Exception as error:
            known = describe_error(error, tool=str(name)[:80])
            answer, outcome = _failure(known), known.code
        if log.isEnabledFor(logging.DEBUG):
            taken_ms = (time.perf_counter() - started) * 1000
            log.debug("tool %.80r: %s after %.1f ms", name, outcome, taken_ms)
        return answer

    async def _call(
        self, name: object, arguments: object, ctx: ToolContext[Any], request_bytes: int
    ) -> dict[str, Any]:
        if request_bytes > self._request_bytes_max:
            raise TooLarge(
                f"the request has {request_bytes} bytes, {self._request_bytes_max} are allowed",
                "send the knowledge in several calls, or raise CKS_MAX_REQUEST_BYTES",
                bytes=request_bytes,
                bytes_max=self._request_bytes_max,
            )
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise unknown_tool(name, list(self._tools))
        given = check_arguments(tool.name, tool.args, arguments)
        result = await tool.function(ctx, given)
        answer = result if isinstance(result, Answer) else Answer(result)
        if not isinstance(answer.result, tool.result):
            raise TypeError(
                f"{tool.name} answered {type(answer.result).__name__}, not {tool.result.__name__}"
            )
        trims = tool.annotations.read_only_hint is not True
        if answer.unlimited:  # it may be a whole session, and other calls must not wait for its JSON
            return await in_worker(lambda: success(answer, trims=trims))
        return success(answer, trims=trims)


def _failure(error: CksError) -> dict[str, Any]:
    try:
        return failure(error.as_json())
    except (TypeError, RecursionError) as broken:
        return failure(describe_error(broken, code=error.code, message=error.message).as_json())


def describe_error(error: Exception, **context: object) -> CksError:
    """The error a caller sees. One of ours goes out as it is; any other is logged and named by an id only."""
    found = _single(error)
    if isinstance(found, CksError) and found.code != InternalError.code:
        return found
    error_id = secrets.token_hex(6)
    log.error("internal error %s", error_id, exc_info=error, extra={"error_id": error_id, "context": context})
    if isinstance(found, CksError):
        found.details.setdefault("error_id", error_id)
        return found
    return InternalError(
        "something went wrong inside the server",
        f"the server's log tells more under the id {error_id}",
        error_id=error_id,
    )


def _single(error: BaseException) -> BaseException:
    """What a task group inside a tool wrapped, where that is one exception."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
