"""Registers ``agl store``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="store",
        target="agl_core.cli.store:store",
        summary="Serve a store over HTTP, and make access tokens for it",
    )
