"""Hooks of the store in memory."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_store() -> ComponentSpec:
    return ComponentSpec(
        kind="store",
        name="memory",
        factory="agl_store_memory:InMemoryLightningStore",
        config="agl_store_memory.config:MemoryStoreConfig",
        capabilities=frozenset({"thread_safe", "async_safe", "events"}),
        summary="In this process's memory; nothing survives it",
        api=1,
    )
