"""Hooks of the export: the command ``agl export``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="export",
        target="agl_export.cli:export",
        summary="Write recorded rollouts as datasets for fine-tuning",
        api=1,
    )
