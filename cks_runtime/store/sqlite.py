"""The SQLite body: one writer connection behind a lock, a few readers, WAL; a file, or one in-memory connection."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal

import aiosqlite
import anyio
import anyio.lowlevel
import anyio.to_thread

from cks_runtime.model.errors import CksError, DamagedBlob, InternalError, StoreBusy, StoreFull, StoreUnusable
from cks_runtime.store.migrations import refuse_foreign, upgrade
from cks_runtime.store.ports import LeaseClock, Row

MEMORY = ":memory:"
READERS_MAX = 3
SIZED_BYTES_MAX = 256 * 1024 * 1024
TURN_WAIT_S = 30.0
_BUSY_MS = 200  # one attempt to begin; cancellation is honoured between attempts

# the second is raised for damaged text in the schema
_ERRORS = (sqlite3.Error, UnicodeDecodeError)

Synchronous = Literal["FULL", "NORMAL"]


class SqliteUnit:
    """Statements on one connection; `statements` counts the round trips of this transaction."""

    dialect = "sqlite"

    def __init__(self, conn: aiosqlite.Connection) -> None:
        self._conn = conn
        self.statements = 0

    async def fetch(self, sql: str, *params: object) -> list[Row]:
        self.statements += 1
        try:
            return list(await self._conn.execute_fetchall(sql, params))
        except _ERRORS as error:
            raise translated(error) from error

    async def execute(self, sql: str, *params: object) -> None:
        await self.fetch(sql, *params)

    async def execute_many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        rows = list(rows)
        if not rows:
            return
        self.statements += 1
        try:
            await self._conn.executemany(sql, rows)
        except _ERRORS as error:
            raise translated(error) from error


class SqliteStore:
    """A Store over SQLite; made by `open_sqlite`."""

    dialect = "sqlite"
    lease_now_sql = "lease_now()"

    def __init__(self, location: str, synchronous: Synchronous) -> None:
        self.location = location
        self.clock: Callable[[], LeaseClock] = boot_clock
        self.has_outbox = location != MEMORY
        self._synchronous = synchronous
        self._writer: aiosqlite.Connection | None = None
        self._turn = anyio.Lock(fast_acquire=True)
        self._idle: list[aiosqlite.Connection] = []
        self._slots = anyio.Semaphore(READERS_MAX)
        self._closed = False
        self.last_statements = 0

    async def connect(self) -> None:
        """Open the writer. The file must have been prepared."""
        self._writer = await self._open(read_only=False)
        await self._writer.create_function("lease_now", 0, lambda: self.clock().now_ms)

    async def _open(self, read_only: bool) -> aiosqlite.Connection:
        conn = await aiosqlite.connect(self.location, isolation_level=None, cached_statements=256)
        try:
            timeout_ms = 5000 if read_only else _BUSY_MS
            for pragma in (
                f"busy_timeout = {timeout_ms}",
                f"synchronous = {self._synchronous}",
                "temp_store = MEMORY",
                "cache_size = -16000",
                "journal_size_limit = 67108864",
                f"query_only = {int(read_only)}",
            ):
                await conn.execute_fetchall(f"PRAGMA {pragma}")
            if self.location == MEMORY:
                # the connection's own thread is the only one that may touch it, and there is no file to prepare
                await conn._execute(upgrade, conn._conn, self.location)  # type: ignore[no-untyped-call]
        except BaseException:
            with anyio.CancelScope(shield=True):
                await conn.close()
            raise
        return conn

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[SqliteUnit]:
        async with self._turn:
            conn = self._writer
            assert conn is not None, "the store is closed"
            unit = SqliteUnit(conn)
            try:
                await self._when_free(conn, "BEGIN IMMEDIATE")
                yield unit
                with anyio.CancelScope(shield=True):
                    await unit.fetch("COMMIT")
            except BaseException:
                # a native task.cancel() passes shields while its statement still runs in the connection's thread;
                # this rollback queues behind it, and does nothing where the transaction has ended
                with anyio.CancelScope(shield=True), suppress(sqlite3.Error):
                    await (
                        conn.rollback()
                    )  # on a damaged file it may complain; the transaction has ended all the same
                raise
            self.last_statements = unit.statements + 1

    async def once(self, sql: str, *params: object) -> list[Row]:
        async with self._turn:
            assert self._writer is not None, "the store is closed"
            return await self._when_free(self._writer, sql, params)

    async def _when_free(
        self, conn: aiosqlite.Connection, sql: str, params: Sequence[object] = ()
    ) -> list[Row]:
        """Run a statement that takes the write lock, as soon as no other process has it."""
        deadline = anyio.current_time() + TURN_WAIT_S
        while True:
            await anyio.lowlevel.checkpoint_if_cancelled()
            try:
                with anyio.CancelScope(shield=True):
                    return list(await conn.execute_fetchall(sql, params))
            except _ERRORS as error:
                if not _is_busy(error):
                    raise translated(error) from error
                if anyio.current_time() > deadline:
                    raise StoreBusy(
                        f"{self.location} was locked by another writer for {TURN_WAIT_S:.0f} s.",
                        "Try again; if it stays locked, look for a program that holds the file open.",
                    ) from error

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[SqliteUnit]:
        if self.location == MEMORY:
            async with self._turn:
                assert self._writer is not None, "the store is closed"
                yield SqliteUnit(self._writer)
            return
        async with self._slots:
            assert not self._closed, "the store is closed"
            conn = self._idle.pop() if self._idle else await self._open_reader()
            try:
                yield SqliteUnit(conn)
            finally:
                if self._closed:
                    with anyio.CancelScope(shield=True):
                        await conn.close()
                else:
                    self._idle.append(conn)

    async def _open_reader(self) -> aiosqlite.Connection:
        try:
            return await self._open(read_only=True)
        except _ERRORS as error:
            raise translated(error) from error

    async def lease_clock(self) -> LeaseClock:
        return self.clock()

    async def sizes(self) -> dict[str, int]:
        async with self.reader() as reader:
            pages = int((await reader.fetch("PRAGMA page_count"))[0][0])
            page_size = int((await reader.fetch("PRAGMA page_size"))[0][0])
            sizes = {"total": pages * page_size}
            if sizes["total"] > SIZED_BYTES_MAX:
                return sizes  # counting by table reads every page
            try:
                rows = await reader.fetch("SELECT name, sum(pgsize) FROM dbstat GROUP BY name")
            except CksError:
                return sizes  # this SQLite was built without dbstat
            sizes.update({str(name): int(size) for name, size in rows})
            return sizes

    async def check(self) -> list[str]:
        async with self.reader() as reader:
            try:
                rows = await reader.fetch("PRAGMA integrity_check(100)")
            except DamagedBlob as error:
                return [error.message]  # too damaged to be looked through
        return [str(row[0]) for row in rows if row[0] != "ok"]

    async def close(self) -> None:
        self._closed = True
        with anyio.CancelScope(shield=True):
            while self._idle:
                await self._idle.pop().close()
            if self._writer is not None:
                writer, self._writer = self._writer, None
                await writer.close()


async def open_sqlite(location: str, synchronous: Synchronous = "FULL") -> SqliteStore:
    """Open `location` (a path or `:memory:`), making and upgrading the file as needed.

    Raises StoreUnusable, naming the file, when it cannot be used; never falls back to another place.
    """
    if location != MEMORY:
        location = await anyio.to_thread.run_sync(_prepare, location)
    store = SqliteStore(location, synchronous)
    try:
        await store.connect()
    except sqlite3.Error as error:
        raise StoreUnusable(f"{location} cannot be opened: {error}.", _HINT) from error
    return store


_HINT = "Check the path, its permissions and that the file is a CKS database; or set CKS_MCP_DB_PATH."


def _prepare(location: str) -> str:
    """Make, check and upgrade the file; returns its absolute path."""
    try:
        path = Path(location).expanduser().absolute()
        _make_private(path)
        location = str(path)
        conn = sqlite3.connect(location, isolation_level=None, timeout=TURN_WAIT_S)
    except (OSError, ValueError, RuntimeError, sqlite3.Error) as error:
        # ValueError is a NUL in the path, RuntimeError a home directory that is not known
        raise StoreUnusable(f"{location} cannot be opened: {error}.", _HINT) from error
    try:
        refuse_foreign(conn, location)
        _to_wal(conn)
        upgrade(conn, location)
    except _ERRORS as error:
        raise StoreUnusable(f"{location} cannot be used: {error}.", _HINT) from error
    finally:
        conn.close()
    return location


def _make_private(path: Path) -> None:
    """Make the file and the folders above it, each for this user alone; what exists is left as it is."""
    for folder in [*reversed(path.parents)]:
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("it is not a regular file")
    finally:
        os.close(descriptor)


def _to_wal(conn: sqlite3.Connection) -> None:
    # switching to WAL does not wait for other openers through the busy handler
    deadline = time.monotonic() + TURN_WAIT_S
    while True:
        try:
            conn.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def boot_clock() -> LeaseClock:
    """Milliseconds since this machine's boot and the boot's id: a clock no one can set."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    else:
        now_ms = time.monotonic_ns() // 1_000_000
    return LeaseClock(now_ms, _boot_id())


@cache  # a process does not outlive its boot
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # the wall-clock time of boot, coarse enough not to move with small clock corrections
        return f"boot-{round((time.time() - time.monotonic()) / 600)}"


def _is_busy(error: Exception) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translated(error: Exception) -> CksError:
    """The error of the tree that says what a caller can do about a database error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(
            "The disk that holds the database is full.", "Free some space and try again; nothing was lost."
        )
    if code == sqlite3.SQLITE_IOERR:
        return StoreFull(
            f"The database could not be read or written ({error}).",
            "Check the disk's space and health and try again; what was acknowledged is kept.",
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or "decode" in str(error):
        return DamagedBlob(
            f"The database file is damaged ({error}).",
            "Run `cks-mcp check`; restore the file from a copy or another replica.",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy("The database was locked by another writer for too long.", "Try again.")
    return InternalError(f"The database refused a statement ({error}).", "Report this with the log.")
