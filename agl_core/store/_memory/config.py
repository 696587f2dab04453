"""Configuration of the memory store in train files and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["MemoryStoreConfig"]


class MemoryStoreConfig(BaseModel):
    """Keyword arguments of :class:`~agl_core.store._memory.InMemoryLightningStore`."""

    model_config = ConfigDict(extra="forbid")

    thread_safe: bool = Field(default=True, description="Value of the capability thread_safe.")
    eviction_memory_threshold: int | float | None = Field(
        default=None,
        description="Evict spans above this: a ratio of memory (float) or bytes (int). "
        "Default: 0.7.",
    )
    safe_memory_threshold: int | float | None = Field(
        default=None,
        description="Evict down to this: a ratio of memory (float) or bytes (int). "
        "Default: 80 % of the eviction threshold.",
    )
    span_size_estimator: Callable[..., Any] | None = Field(
        default=None, description="Returns a span's size in bytes; from Python only.", exclude=True
    )
    scan_debounce_seconds: float = Field(
        default=10.0, ge=0, description="Shortest time between two scans of the watchdog."
    )
