"""What a database body must offer: write transactions, readers and a lease clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class LeaseClock:
    """The clock leases count by: `now_ms` on the clock named `boot_id`; a lease of another boot has ended."""

    now_ms: int
    boot_id: str


class Reader(Protocol):
    """Reads committed data. Statements are portable SQL with `?` for parameters."""

    dialect: str

    async def fetch(self, sql: str, *params: object) -> list[Row]:
        """Every row of one statement."""
        ...


class Unit(Reader, Protocol):
    """One write transaction: sees its own writes; commits when its block ends without an exception."""

    async def execute(self, sql: str, *params: object) -> None:
        """Run one statement. A guarded change uses `fetch` with RETURNING instead."""
        ...

    async def execute_many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Run one statement for every row, in one round trip; nothing happens for no rows."""
        ...


class Store(Protocol):
    """A database. Inside a unit, never open a reader: the unit reads."""

    dialect: str
    has_outbox: bool
    location: str
    lease_now_sql: str
    """The lease clock as an SQL expression: what a statement of `once` reads after it got its turn."""

    def unit(self) -> AbstractAsyncContextManager[Unit]:
        """Begin a write transaction; writers of all processes take turns.

        Raises StoreFull when the disk is full and StoreBusy when no turn came within 30 s. Cancellation rolls back.
        """
        ...

    async def once(self, sql: str, *params: object) -> list[Row]:
        """One guarded statement as a whole write transaction, in one round trip; its RETURNING rows.

        Raises as `unit`; cancelled before its turn it does nothing, after that it runs to its end.
        """
        ...

    def reader(self) -> AbstractAsyncContextManager[Reader]:
        """Borrow a read connection."""
        ...

    async def lease_clock(self) -> LeaseClock:
        """Now, on the clock that leases in this database count by."""
        ...

    async def sizes(self) -> dict[str, int]:
        """Bytes by table, as far as the database tells."""
        ...

    async def check(self) -> list[str]:
        """What the database's own integrity check complains about; empty when sound."""
        ...

    async def close(self) -> None:
        """Release every connection; safe to call twice."""
        ...
