"""Configuration of the PostgreSQL store."""

from __future__ import annotations

from pydantic import Field

from agl_core.plugins import ComponentConfig

__all__ = ["PostgresConfig"]


class PostgresConfig(ComponentConfig):
    """Options of ``store.postgres``."""

    uri: str = Field(default="postgresql://localhost/agl", min_length=1, kw_only=False)
    """The connection string (``postgresql://user:password@host/database``); credentials, TLS and
    several hosts belong here. The database must exist and be in UTF-8."""
    listen_uri: str | None = Field(default=None, min_length=1)
    """A direct connection to the same database, for LISTEN. Set it if ``uri`` leads to a pooler in
    transaction mode, such as PgBouncer; the store then prepares no statements."""
    schema_name: str = Field(default="agl", pattern="^[A-Za-z_][A-Za-z0-9_]{0,39}$")
    """The schema of the tables, created on first use. Stores with different schemas of one database
    share no data."""
    max_connections: int = Field(default=8, ge=1)
    """Most connections of one process, without the one for LISTEN."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long a call tries to reach the server before it fails, in seconds."""
    scan_debounce_seconds: float = Field(default=10.0, ge=0)
    """Shortest time between two scans of the watchdog, over all processes, in seconds."""
