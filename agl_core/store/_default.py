"""Chooses the default store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from agl_core.plugins import get_registry

DEFAULT_FILE: Final = "agl.db"
_DURABLE: Final = "sqlite"


def default_store(directory: str | Path) -> dict[str, Any]:
    """Return the spec of the store that is used when none is named.

    Args:
        directory: Directory of its file: ``agl.db`` of the plugin ``sqlite`` if that is installed;
            else the store is in memory.
    """
    if any(record.name == _DURABLE for record in get_registry().usable("store")):
        return {"type": _DURABLE, "path": str(Path(directory).absolute() / DEFAULT_FILE)}
    return {"type": "memory"}
