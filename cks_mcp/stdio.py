"""The stdio transport: our own reader and writer around the SDK's serving loop.

The SDK's transport answers nothing to lines it cannot parse, dies of some of them, knows no size limit, ignores
SIGTERM and drops requests that are still being worked on when the input ends. Its loop behind the two streams
(`serve_dual_era_loop`) does all the rest, for both generations of the protocol.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream, TaskStatus
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_dual_era_loop
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from cks_mcp.lifecycle import StandardStreams, resume_gc, start_exit_deadline
from cks_mcp.lines import Decoded, Drop, Refusal, decode_line, encode_message, refuse_long

log = logging.getLogger(__name__)

READ_BYTES = 65_536
WRITE_BYTES = 4096
"""POSIX: a pipe that polls as writable takes this much without blocking."""
OUTPUT_BYTES_MAX = 262_144
"""Answers that wait for a slow client: beyond it their senders wait too, and nothing is lost."""
IN_FLIGHT_MAX = 1024
"""Requests being worked on: beyond it the next line is not read before one is answered."""
PREFIX_BYTES = 65_536
GRACE_S = 1.5
"""How long requests may go on after the input ended; then they are cancelled."""
FLUSH_S = 1.0


@dataclass(frozen=True, slots=True)
class RequestSize:
    """What the transport tells a handler about its request (as the SDK's `ctx.request`)."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Overlong:
    prefix: bytes


class _InFlight:
    """Ids of requests that were handed on and not yet answered."""

    def __init__(self) -> None:
        self._ids: set[RequestId] = set()
        self._changed = anyio.Event()

    def open(self, request_id: RequestId) -> None:
        self._ids.add(request_id)

    def settle(self, request_id: RequestId | None) -> None:
        if request_id in self._ids:
            self._ids.remove(request_id)
            self._changed.set()
            self._changed = anyio.Event()

    async def wait_below(self, count: int) -> None:
        while len(self._ids) >= count:
            await self._changed.wait()


class Output:
    """The SDK's write stream. A line is written whole or not at all, whoever is cancelled meanwhile."""

    def __init__(self, fd: int, in_flight: _InFlight, on_broken: Callable[[], None]) -> None:
        self._fd = fd
        self._in_flight = in_flight
        self._on_broken = on_broken
        self._buffer = bytearray()
        self._wake = anyio.Event()
        self._drained = anyio.Event()
        self._closed = False
        self._broken = False

    async def send(self, item: SessionMessage, /) -> None:
        """Raises ClosedResourceError after close, BrokenResourceError when the client is gone."""
        if self._closed:
            raise anyio.ClosedResourceError
        await self.write(item.message)

    async def write(self, message: JSONRPCMessage) -> None:
        """Queue one message and write as much as the client takes; waits only when too much is queued."""
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            self._in_flight.settle(message.id)
        if self._broken:
            raise anyio.BrokenResourceError
        self._buffer += _encode(message)
        self._write_some()
        if self._buffer:
            self._wake.set()
        while len(self._buffer) > OUTPUT_BYTES_MAX:
            await self._drained.wait()

    async def run(self) -> None:
        """Write on whenever the client takes more; ends when it is gone."""
        while not self._broken:
            if not self._buffer:
                self._wake = anyio.Event()
                await self._wake.wait()
            await self.flush()

    async def flush(self) -> None:
        """Returns when all that is queued is written, or the client is gone."""
        while self._buffer and not self._broken:
            await anyio.wait_writable(self._fd)
            self._write_some()

    def _write_some(self) -> None:
        try:
            while self._buffer and select.select([], [self._fd], [], 0)[1]:
                written = os.write(self._fd, self._buffer[:WRITE_BYTES])
                del self._buffer[:written]
        except OSError:
            self._broken = True
            self._buffer.clear()
            self._on_broken()
        if len(self._buffer) <= OUTPUT_BYTES_MAX:
            self._drained.set()
            self._drained = anyio.Event()

    async def aclose(self) -> None:
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _encode(message: JSONRPCMessage) -> bytes:
    try:
        return encode_message(message)
    except (TypeError, ValueError, RecursionError):
        log.exception("an answer is no JSON")
        request_id = getattr(message, "id", None)
        error = ErrorData(code=INTERNAL_ERROR, message="the answer cannot be written as JSON")
        return encode_message(JSONRPCError.model_construct(jsonrpc="2.0", id=request_id, error=error))


async def _read_chunks(fd: int) -> AsyncIterator[bytes]:
    polled = True
    while True:
        if polled:
            try:
                await anyio.wait_readable(fd)
            except PermissionError:
                # A regular file (or the null device) cannot be polled, and reading it never waits.
                polled = False
        else:
            await anyio.lowlevel.checkpoint()
        try:
            chunk = os.read(fd, READ_BYTES)
        except OSError:
            return
        if not chunk:
            return
        yield chunk


async def _read_lines(fd: int, bytes_max: int) -> AsyncIterator[bytes | _Overlong]:
    """Lines without their end; one longer than `bytes_max` is skipped, only its start is kept."""
    buffer = bytearray()
    skipping: bytes | None = None
    async for chunk in _read_chunks(fd):
        searched = len(buffer)
        buffer += chunk
        while (end := buffer.find(b"\n", searched)) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            searched = 0
            if skipping is not None:
                yield _Overlong(skipping)
                skipping = None
            else:
                yield line if len(line) <= bytes_max else _Overlong(line[:PREFIX_BYTES])
        if len(buffer) > bytes_max:
            skipping = skipping or bytes(buffer[:PREFIX_BYTES])
            buffer.clear()
    if skipping is not None:
        yield _Overlong(skipping)
    elif buffer:
        yield bytes(buffer)


class _Input:
    """Reads the client's lines, answers the broken ones and hands the others to the SDK."""

    def __init__(
        self,
        fd: int,
        bytes_max: int,
        messages: ObjectSendStream[SessionMessage | Exception],
        output: Output,
        in_flight: _InFlight,
        on_end: Callable[[], object],
    ) -> None:
        self._on_end = on_end
        self._fd = fd
        self._bytes_max = bytes_max
        self._messages = messages
        self._output = output
        self._in_flight = in_flight

    async def run(self) -> None:
        """Until the input ends and what it asked for is answered, or the grace for that is over."""
        async with self._messages:
            try:
                async for line in _read_lines(self._fd, self._bytes_max):
                    await self._take(line)
                self._on_end()
                with anyio.move_on_after(GRACE_S):
                    await self._in_flight.wait_below(1)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                log.debug("the serving loop or the client is gone")

    async def _take(self, line: bytes | _Overlong) -> None:
        if isinstance(line, _Overlong):
            await self._refuse(refuse_long(line.prefix, self._bytes_max))
            return
        for item in _decode(line):
            match item:
                case Refusal():
                    await self._refuse(item)
                case Drop(reason):
                    log.info("dropped: %s", reason)
                case _:
                    await self._hand_on(item, len(line))

    async def _refuse(self, refusal: Refusal) -> None:
        log.info("refused a line: %s", refusal.message)
        await self._output.write(refusal.as_message())

    async def _hand_on(self, message: JSONRPCMessage, size_bytes: int) -> None:
        metadata: ServerMessageMetadata | None = None
        if isinstance(message, JSONRPCRequest):
            await self._in_flight.wait_below(IN_FLIGHT_MAX)
            metadata = ServerMessageMetadata(request_context=RequestSize(size_bytes))
            # A listen request stays open as long as the client likes, so nothing waits for its answer.
            if message.method != "subscriptions/listen":
                request_id = message.id
                self._in_flight.open(request_id)

                async def unanswered() -> None:
                    self._in_flight.settle(request_id)

                metadata.on_request_unanswered = unanswered
        await self._messages.send(SessionMessage(message, metadata))


def _decode(line: bytes) -> list[Decoded]:
    try:
        return decode_line(line)
    except Exception:
        # The one place every byte from outside passes: an oversight there must not end the server.
        log.exception("a line could not be decoded")
        return [Refusal(None, INTERNAL_ERROR, "the line could not be decoded")]


async def serve_stdio(
    server: Server[Any],
    streams: StandardStreams,
    *,
    request_bytes_max: int,
    on_stopping: Callable[[], object] = lambda: None,
) -> None:
    """Serve one client until its input ends, it stops reading, or SIGTERM or SIGINT arrives.

    The server's lifespan is entered before the first line is read and left, without being cancelled, after the
    last answer. A line of up to twice `request_bytes_max` still reaches its handler, which refuses it in the
    form of its kind; a longer one is refused here. `on_stopping` is called when the end begins, perhaps twice.
    """
    if streams.input_fd is None or streams.output_fd is None:
        return
    in_flight = _InFlight()
    async with anyio.create_task_group() as tasks, AsyncExitStack() as stack:
        serving, opened = anyio.CancelScope(), False

        def stop() -> None:
            on_stopping()
            # Once the lifespan is open it must be left in peace, so only what runs inside it is cancelled.
            (serving if opened else tasks.cancel_scope).cancel()

        await tasks.start(_stop_on_signals, stop)
        lifespan_state = await stack.enter_async_context(server.lifespan(server))
        opened = True
        output = Output(streams.output_fd, in_flight, on_broken=stop)
        messages, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](16)
        line_bytes_max = 2 * request_bytes_max + PREFIX_BYTES
        reader = _Input(streams.input_fd, line_bytes_max, messages, output, in_flight, on_stopping)
        with serving:
            await _serve(server, lifespan_state, incoming, output, reader)
        on_stopping()
        with anyio.move_on_after(FLUSH_S):
            await output.flush()
        await stack.aclose()
        tasks.cancel_scope.cancel()


async def _serve(
    server: Server[Any],
    lifespan_state: Any,
    incoming: ObjectReceiveStream[SessionMessage | Exception],
    output: Output,
    reader: _Input,
) -> None:
    options = server.create_initialization_options()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(output.run)
        tasks.start_soon(reader.run)
        await serve_dual_era_loop(
            server, incoming, output, lifespan_state=lifespan_state, init_options=options
        )
        tasks.cancel_scope.cancel()


async def _stop_on_signals(
    stop: Callable[[], None], *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            log.info("stopping on %s", signal.Signals(number).name)
            stop()


def run_stdio(server: Server[Any], streams: StandardStreams, *, request_bytes_max: int) -> None:
    """Serve the process's own streams; returns within five seconds of the end, with nothing left running.

    Raises what the server's lifespan raises at start.
    """
    deadlines: list[threading.Timer] = []

    def on_stopping() -> None:
        if not deadlines:
            deadlines.append(start_exit_deadline())

    async def main() -> None:
        await serve_stdio(server, streams, request_bytes_max=request_bytes_max, on_stopping=on_stopping)

    resume_gc()
    try:
        anyio.run(main)
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _only(error: BaseException) -> BaseException:
    """What a task group wrapped, where that is one exception."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
