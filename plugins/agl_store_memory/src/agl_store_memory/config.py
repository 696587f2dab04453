"""Options of the memory store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from agl_core.plugins import ComponentConfig


class MemoryStoreConfig(ComponentConfig):
    """Options of :class:`~agl_store_memory.InMemoryLightningStore`."""

    thread_safe: bool = True
    """Value of the capability ``thread_safe``; the store is thread-safe anyway."""
    eviction_memory_threshold: int | float | None = None
    """Evict spans above this: a ratio of the machine's memory (a float in (0, 1]) or bytes (an
    int). Default: 0.7."""
    safe_memory_threshold: int | float | None = None
    """Evict down to this: a ratio (a float in [0, 1]) or bytes. Default: 80 % of the eviction
    threshold."""
    span_size_estimator: Callable[..., Any] | None = Field(default=None, exclude=True)
    """Returns a span's size in bytes; by default it is estimated from the span's text. With a
    function, every span that was added as bytes is decoded once more."""
    scan_debounce_seconds: float = Field(default=10.0, ge=0)
    """Shortest time between two scans of the watchdog, in seconds; 0 scans at every call whose
    result it may change."""
