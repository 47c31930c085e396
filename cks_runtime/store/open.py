"""Which body of the store a database path names."""

from __future__ import annotations

from cks_runtime.model.errors import StoreUnusable
from cks_runtime.store.ports import Store
from cks_runtime.store.sqlite import Synchronous, open_sqlite


async def open_store(db_path: str, synchronous: Synchronous = "FULL") -> Store:
    """Open the database. Raises StoreUnusable when it cannot be used."""
    if db_path.startswith(("postgresql://", "postgres://")):
        raise StoreUnusable(
            "This version has no PostgreSQL store yet.", "Set CKS_MCP_DB_PATH to a file path or to :memory:."
        )
    return await open_sqlite(db_path, synchronous)
