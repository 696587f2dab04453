"""Configuration of the SQLite store."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["SqliteConfig"]


class SqliteConfig(BaseModel):
    """Options of ``store.sqlite``."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(default="agl.db", min_length=1)
    """The database file; it is created, with two files beside it (``-wal``, ``-shm``)."""
    durability: Literal["full", "normal"] = "full"
    """``full``: a returned write survives power loss. ``normal``: it survives the death of the
    process; power loss may take the last moments, and leaves the file whole."""
    busy_seconds: float = Field(default=10.0, gt=0)
    """How long a write waits for another process that holds the file, in seconds."""
    scan_debounce_seconds: float = Field(default=10.0, ge=0)
    """Shortest time between two looks of the watchdog, over all processes, in seconds."""
