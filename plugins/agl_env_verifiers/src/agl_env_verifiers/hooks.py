"""Hooks of this plugin; verifiers is imported when an environment is used."""

from agl_core.plugins import EnvironmentSpec, hookimpl


@hookimpl
def agl_environment() -> EnvironmentSpec:
    return EnvironmentSpec(
        name="verifiers",
        load="agl_env_verifiers.environment:load",
        summary="Environments of the verifiers library",
        api=1,
    )
