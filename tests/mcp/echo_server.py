"""A small real server built from the shell alone, for tests and the start-up bench: no knowledge, only the wiring."""

from __future__ import annotations

import sys

from cks_mcp.lifecycle import claim_standard_streams, exit_on_early_signals, pause_gc

if __name__ == "__main__":
    exit_on_early_signals()
    pause_gc()
    STREAMS = claim_standard_streams()

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, Literal

import anyio
from mcp.server.lowlevel import Server
from pydantic import Field

from cks_mcp.answers import Answer, Result
from cks_mcp.arguments import Args
from cks_mcp.calls import ToolContext, Tools, Toolset
from cks_mcp.resources import Resources
from cks_mcp.server import Offer, build_server
from cks_mcp.subscriptions import ResourceUpdates
from cks_runtime.model.errors import HeadMoved

echo = Toolset("echo")
resources = Resources()


class Place(Args):
    x: int
    y: float = 0.0


class EchoArgs(Args):
    text: str = Field("", description="Any text.", max_length=1_000_000)
    count: int = Field(1, ge=1, le=500)
    ratio: float | None = None
    flag: bool = False
    mode: Literal["merge", "replace"] = "merge"
    places: list[Place] | None = None
    from_: str | None = Field(None, alias="from")


class EchoResult(Result):
    text: str
    count: int
    ratio: float | None = None
    places: list[dict[str, Any]] = Field(default_factory=list)
    client: str


@echo.tool(read_only=True)
async def say(ctx: ToolContext[App], args: EchoArgs) -> EchoResult:
    """Say the text back."""
    places = [] if args.places is None else [{"x": place.x, "y": place.y} for place in args.places]
    return EchoResult(
        text=args.text * args.count, count=args.count, ratio=args.ratio, places=places, client=ctx.client_name
    )


class Knowledge(Args):
    knowledge: dict[str, Any]


class Size(Result):
    keys: int
    value: Any = None


@echo.tool(read_only=True)
async def validate_knowledge(ctx: ToolContext[App], args: Knowledge) -> Size:
    """Count the keys of the knowledge."""
    return Size(keys=len(args.knowledge), value=args.knowledge.get("back"))


class Nap(Args):
    seconds: float = Field(ge=0, le=60)


class Empty(Result):
    pass


@echo.tool(read_only=True)
async def nap(ctx: ToolContext[App], args: Nap) -> Empty:
    """Sleep."""
    ctx.app.naps += 1
    try:
        await anyio.sleep(args.seconds)
    except anyio.get_cancelled_exc_class():
        ctx.app.cancelled += 1
        raise
    return Empty()


class Count(Result):
    naps: int
    cancelled: int
    pid: int


class Nothing(Args):
    pass


@echo.tool(read_only=True)
async def counts(ctx: ToolContext[App], args: Nothing) -> Count:
    """How many naps were begun and cancelled."""
    return Count(naps=ctx.app.naps, cancelled=ctx.app.cancelled, pid=os.getpid())


class How(Args):
    how: Literal["head_moved", "bug", "group", "print", "wrong_type", "bad_details"]


@echo.tool()
async def fail(ctx: ToolContext[App], args: How) -> Empty:
    """Fail in one of the ways a tool can."""
    if args.how == "head_moved":
        raise HeadMoved("the head moved", "read again", current_head="ab" * 32)
    if args.how == "group":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_raise_head_moved)
    if args.how == "print":
        print("stray text on stdout")
        os.write(1, b"stray bytes on descriptor 1\n")
        await anyio.run_process(["echo", "a stray child"], stdout=None)
        return Empty()
    if args.how == "wrong_type":
        return None  # type: ignore[return-value]
    if args.how == "bad_details":
        raise HeadMoved("the head moved", current_head=object())
    raise RuntimeError("password hunter2-hunter2")


async def _raise_head_moved() -> None:
    raise HeadMoved("the head moved", current_head="cd" * 32)


class Amount(Args):
    items: int = Field(ge=0, le=100_000)
    item_bytes: int = Field(10, ge=1, le=1000)


class Items(Result):
    items: list[str]
    truncated: bool | None = None


@echo.tool(read_only=True)
async def read_many(ctx: ToolContext[App], args: Amount) -> Items:
    """Answer with a long list."""
    return Items(items=["é" * args.item_bytes] * args.items)


@echo.tool(destructive=True)
async def write_many(ctx: ToolContext[App], args: Amount) -> Items:
    """Do something, and answer with a long list."""
    return Items(items=["y" * args.item_bytes] * args.items)


@echo.tool(read_only=True)
async def document(ctx: ToolContext[App], args: Amount) -> Answer[Size]:
    """Answer with a text of its own, of any length."""
    return Answer(Size(keys=args.items), text="z" * args.items, unlimited=True)


class Touch(Args):
    uri: str


@echo.tool(idempotent=True)
async def touch(ctx: ToolContext[App], args: Touch) -> Empty:
    """Say that a resource changed."""
    ctx.app.updates.touch(args.uri)
    return Empty()


@resources.resource("cks://counts", description="The counts.")
async def read_counts(ctx: ToolContext[App]) -> dict[str, Any]:
    return {"naps": ctx.app.naps}


@resources.template("cks://sessions/{id}", description="A session.")
async def read_session(ctx: ToolContext[App], id: str) -> Size:
    if id == "bug":
        raise RuntimeError("password hunter2-hunter2")
    return Size(keys=len(id), value=id)


class App:
    """What the lifespan opens here."""

    def __init__(self, updates: ResourceUpdates) -> None:
        self.naps = 0
        self.cancelled = 0
        self.updates = updates


def make_server(request_bytes_max: int = 5_000_000, trace: str | None = None) -> Server[App]:
    updates = ResourceUpdates()

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[App]:
        app = App(updates)
        try:
            if os.environ.get("ECHO_START"):
                await anyio.sleep(float(os.environ["ECHO_START"]))
            yield app
        finally:
            await anyio.sleep(0.01)
            if trace:
                await anyio.Path(trace).write_text(f"closed naps={app.naps} cancelled={app.cancelled}\n")

    return build_server(
        name="echo",
        version="1.0",
        instructions="Echoes.",
        offer=Offer(Tools([echo], request_bytes_max=request_bytes_max), resources),
        updates=updates,
        lifespan=lifespan,
    )


def main() -> None:
    from cks_mcp.stdio import run_stdio
    from cks_runtime.logs import configure_logging
    from cks_runtime.settings import settings_or_exit

    settings = settings_or_exit("echo-server")
    configure_logging(level=settings.log_level, format=settings.log_format, secrets=settings.secrets())
    trace = sys.argv[1] if len(sys.argv) > 1 else None
    server = make_server(settings.max_request_bytes, trace)
    run_stdio(server, STREAMS, request_bytes_max=settings.max_request_bytes)


if __name__ == "__main__":
    main()
