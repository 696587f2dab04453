"""The store in this process's memory."""

from __future__ import annotations

from agl_store_memory.store import InMemoryLightningStore

__all__ = ["InMemoryLightningStore"]
