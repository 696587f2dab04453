"""Registers ``agl export``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="export",
        target="agl_core.cli.export:export",
        summary="Make datasets for fine-tuning of what rollouts recorded",
    )
