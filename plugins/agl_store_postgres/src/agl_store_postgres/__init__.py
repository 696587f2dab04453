"""A durable agl store in PostgreSQL, for any number of machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_store_postgres.config import PostgresConfig

if TYPE_CHECKING:
    from agl_store_postgres.store import PostgresLightningStore

__all__ = ["PostgresConfig", "PostgresLightningStore"]

# Checking a configuration imports this package, and must not import psycopg.
__getattr__, __dir__ = lazy_names(__name__, {"PostgresLightningStore": "agl_store_postgres.store"})
