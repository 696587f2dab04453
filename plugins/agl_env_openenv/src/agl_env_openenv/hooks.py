"""Hooks of this plugin; its client libraries are imported when an environment is used."""

from agl_core.plugins import EnvironmentSpec, hookimpl


@hookimpl
def agl_environment() -> EnvironmentSpec:
    return EnvironmentSpec(
        name="openenv",
        load="agl_env_openenv.environment:load",
        summary="Environment servers of OpenEnv",
        api=1,
    )
