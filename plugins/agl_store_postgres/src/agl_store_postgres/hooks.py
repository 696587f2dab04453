"""Plugin hooks of the PostgreSQL store."""

from agl_core.plugins import CheckSpec, ComponentSpec, hookimpl


@hookimpl
def agl_store() -> ComponentSpec:
    return ComponentSpec(
        kind="store",
        name="postgres",
        factory="agl_store_postgres.store:PostgresLightningStore",
        config="agl_store_postgres.config:PostgresConfig",
        capabilities=frozenset({"thread_safe", "durable", "processes", "events"}),
        summary="PostgreSQL; any number of machines share it, everything survives a crash",
        api=1,
    )


@hookimpl
def agl_check() -> CheckSpec:
    return CheckSpec(
        name="postgres",
        check="agl_store_postgres.check:check_server",
        summary="Whether the PostgreSQL server of a store is recent enough and set up well",
        reads_store=True,
        api=1,
    )
