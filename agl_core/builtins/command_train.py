"""Registers ``agl train``."""

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="train",
        target="agl_core.cli.train:train",
        summary="Train the agent that a file describes",
    )
