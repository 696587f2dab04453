"""Hooks of the HTTP store: the component ``store.http`` and the command ``agl store``."""

from agl_core.plugins import CommandSpec, ComponentSpec, hookimpl


@hookimpl
def agl_store() -> ComponentSpec:
    return ComponentSpec(
        kind="store",
        name="http",
        factory="agl_store_http:LightningStoreClient",
        config="agl_store_http.client.config:ClientConfig",
        capabilities=frozenset({"thread_safe", "async_safe", "zero_copy", "events"}),
        summary="A store server, wherever it runs",
    )


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="store",
        target="agl_store_http.cli.store:store",
        summary="Serve a store over HTTP, and make access tokens for it",
    )
