"""Hooks of this package: the command ``agl trace``, and the store check of ``agl doctor``."""

from agl_core.plugins import CheckSpec, CommandSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="trace",
        target="agl_trace.cli:trace",
        summary="Show a rollout as a tree of its spans",
        api=1,
    )


@hookimpl
def agl_check() -> CheckSpec:
    return CheckSpec(
        name="store",
        check="agl_trace.check:check_store",
        reads_store=True,
        summary="Why rollouts do not progress, and what traces lack",
        api=1,
    )
