"""Plugin hooks of the SQLite store."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_store() -> ComponentSpec:
    return ComponentSpec(
        kind="store",
        name="sqlite",
        factory="agl_store_sqlite.store:SqliteLightningStore",
        config="agl_store_sqlite.config:SqliteConfig",
        capabilities=frozenset({"thread_safe", "durable", "processes", "events"}),
        summary="one file on this machine; everything survives a crash",
        api=1,
    )
