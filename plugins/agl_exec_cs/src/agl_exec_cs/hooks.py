"""Hooks of client-server execution: the strategy, and the commands of its two roles."""

from agl_core.plugins import CommandSpec, ComponentSpec, hookimpl


@hookimpl
def agl_execution() -> ComponentSpec:
    return ComponentSpec(
        kind="execution",
        name="cs",
        factory="agl_exec_cs:ClientServerExecutionStrategy",
        config="agl_exec_cs.config:ClientServerConfig",
        summary="Runners as processes, here and on other machines, around a store server",
        api=1,
    )


@hookimpl
def agl_command() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="algorithm",
            target="agl_exec_cs.cli:algorithm",
            summary="Run the algorithm of a train file for runners elsewhere",
            api=1,
        ),
        CommandSpec(
            name="runner",
            target="agl_exec_cs.cli:runner",
            summary="Run the agent of a train file for an algorithm elsewhere",
            api=1,
        ),
    ]
