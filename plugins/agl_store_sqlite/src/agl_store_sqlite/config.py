"""Configuration of the SQLite store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agl_core.plugins import ComponentConfig

__all__ = ["SqliteConfig"]


def _path_text(value: Any) -> str | bytes:
    try:
        return os.fspath(value)
    except TypeError as error:  # pydantic collects ValueErrors only
        raise ValueError(str(error)) from error


class SqliteConfig(ComponentConfig):
    """Options of ``store.sqlite``."""

    path: Annotated[str | Path, BeforeValidator(_path_text)] = Field(
        default="agl.db", min_length=1, kw_only=False
    )
    """The database file; it is created, with two files beside it (``-wal``, ``-shm``)."""
    durability: Literal["full", "normal"] = "full"
    """``full``: a returned write survives power loss. ``normal``: it survives the death of the
    process; power loss may take the last writes, but does not damage the file."""
    busy_seconds: float = Field(default=10.0, gt=0)
    """How long a write waits for the lock of another process, in seconds."""
    scan_debounce_seconds: float = Field(default=10.0, ge=0)
    """Shortest time between two scans of the watchdog, over all processes, in seconds."""
