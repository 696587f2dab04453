"""Hooks of this package: its commands."""

from collections.abc import Sequence

from agl_core.plugins import CommandSpec, hookimpl


@hookimpl
def agl_command() -> Sequence[CommandSpec]:
    return [
        CommandSpec(
            name="top",
            target="agl_top.top:top",
            summary="Watch rollouts, queue, workers, rewards and rates",
            api=1,
        ),
        CommandSpec(
            name="rollouts",
            target="agl_top.lists:rollouts",
            summary="List rollouts of a store",
            api=1,
        ),
        CommandSpec(
            name="attempts",
            target="agl_top.lists:attempts",
            summary="List attempts of a rollout, or the latest of all",
            api=1,
        ),
        CommandSpec(
            name="workers",
            target="agl_top.lists:workers",
            summary="List workers and their load",
            api=1,
        ),
        CommandSpec(
            name="resources",
            target="agl_top.lists:resources",
            summary="List snapshots of resources, or show one",
            api=1,
        ),
    ]
