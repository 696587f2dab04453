"""Hooks of the HTTP store: the component, the command ``agl store`` and a check."""

from agl_core.plugins import CheckSpec, CommandSpec, ComponentSpec, hookimpl


@hookimpl
def agl_store() -> ComponentSpec:
    return ComponentSpec(
        kind="store",
        name="http",
        factory="agl_store_http:LightningStoreClient",
        config="agl_store_http.client.config:ClientConfig",
        capabilities=frozenset({"thread_safe", "async_safe", "zero_copy", "events"}),
        summary="A store server, wherever it runs",
        api=1,
    )


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="store",
        target="agl_store_http.cli.store:store",
        summary="Serve a store over HTTP, and make access tokens for it",
        api=1,
    )


@hookimpl
def agl_check() -> CheckSpec:
    return CheckSpec(
        name="port",
        check="agl_store_http.check:check_port",
        summary="Whether the default port of a store server is free",
        api=1,
    )
