"""A durable agl store in one SQLite file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agl_store_sqlite.config import SqliteConfig

if TYPE_CHECKING:
    from agl_store_sqlite.store import SqliteLightningStore

__all__ = ["SqliteConfig", "SqliteLightningStore"]


def __getattr__(name: str) -> Any:
    # Checking a configuration imports this package, and must not import the store.
    if name != "SqliteLightningStore":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from agl_store_sqlite.store import SqliteLightningStore

    return SqliteLightningStore
