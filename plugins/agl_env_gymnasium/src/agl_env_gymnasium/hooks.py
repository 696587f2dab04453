"""Hooks of this plugin; Gymnasium is imported when an environment is used."""

from agl_core.plugins import EnvironmentSpec, hookimpl


@hookimpl
def agl_environment() -> EnvironmentSpec:
    return EnvironmentSpec(
        name="gymnasium",
        load="agl_env_gymnasium.environment:load",
        summary="Environments of Gymnasium in text form",
        api=1,
    )
