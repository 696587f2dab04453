"""Chooses the default store, and describes stores for the log."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from agl_core.plugins import get_registry
from agl_core.plugins._registry import remedy
from agl_core.store._base import LightningStore

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


def describe_store(store: LightningStore, name: str = "") -> str:
    """Return a line with the kind of a store, its location, and whether its data is durable.

    Args:
        store: The store.
        name: Name under which it was configured; by default the name of its class.
    """
    name = name or type(store).__name__
    for attribute in ("path", "server_address", "endpoint"):
        where = getattr(store, attribute, None)
        if where:
            return f"store: {name}, {where}"
    if store.capabilities.get("durable"):
        return f"store: {name}"
    usable = default_store(".")["type"] == _DURABLE
    advice = f"; {remedy('store', _DURABLE)}" if name == "memory" and not usable else ""
    return f"store: {name}, its data is lost when this process ends{advice}"
