"""Hooks of the export: the command ``agl export``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="export",
        target="agl_export.cli:export",
        summary="Make datasets for fine-tuning of what rollouts recorded",
    )
