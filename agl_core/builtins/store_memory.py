"""Hook of the built-in store ``memory``."""

from __future__ import annotations

from agl_core.plugins.spec import ComponentSpec, hookimpl

__all__ = ["agl_store"]


@hookimpl
def agl_store() -> ComponentSpec:
    return ComponentSpec(
        kind="store",
        name="memory",
        factory="agl_core.store.memory.store:InMemoryLightningStore",
        config="agl_core.store.memory.config:MemoryStoreConfig",
        capabilities=frozenset({"thread_safe", "async_safe", "events"}),
        summary="In this process's memory; nothing survives it",
    )
