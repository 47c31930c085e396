"""Statements for single values of a database, such as the replica's id."""

from __future__ import annotations

from cks_runtime.store.ports import Reader, Unit


async def get_meta(reader: Reader, key: str) -> str | None:
    """The value, or None."""
    rows = await reader.fetch("SELECT value FROM meta WHERE key = ?", key)
    return str(rows[0][0]) if rows else None


async def set_meta_once(unit: Unit, key: str, value: str) -> str:
    """Store the value unless there is one; returns the one that stands."""
    await unit.execute("INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING", key, value)
    rows = await unit.fetch("SELECT value FROM meta WHERE key = ?", key)
    return str(rows[0][0])


async def set_meta(unit: Unit, key: str, value: str) -> None:
    """Store or replace the value."""
    await unit.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        key,
        value,
    )
