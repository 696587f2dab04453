"""Declares the command ``agl promote``, and the interceptor that assigns live traffic."""

from agl_core.plugins import CommandSpec, InterceptorSpec, hookimpl


@hookimpl
def agl_command() -> CommandSpec:
    return CommandSpec(
        name="promote",
        target="agl_promote.cli:promote",
        summary="Make a prompt or policy live if a paired test shows that it is better",
        api=1,
    )


@hookimpl
def agl_interceptor() -> InterceptorSpec:
    return InterceptorSpec(
        name="promote",
        interceptor="agl_promote.trial:LiveAssignment",
        summary="Gives each new live rollout one of the two versions of a trial",
        api=1,
    )
