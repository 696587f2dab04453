"""Plugin hooks of the MongoDB store."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_store() -> ComponentSpec:
    return ComponentSpec(
        kind="store",
        name="mongo",
        factory="agl_store_mongo.store:MongoLightningStore",
        config="agl_store_mongo.config:MongoConfig",
        capabilities=frozenset({"thread_safe", "durable", "processes", "events"}),
        summary="MongoDB; any number of machines share it, everything survives a crash",
        api=1,
    )
