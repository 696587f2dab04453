"""A durable agl store in one SQLite file."""

from agl_store_sqlite.config import SqliteConfig
from agl_store_sqlite.store import SqliteLightningStore

__all__ = ["SqliteConfig", "SqliteLightningStore"]
