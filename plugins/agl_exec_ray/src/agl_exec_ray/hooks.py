"""Hooks of execution on Ray: the strategy."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_execution() -> ComponentSpec:
    return ComponentSpec(
        kind="execution",
        name="ray",
        factory="agl_exec_ray:RayExecutionStrategy",
        config="agl_exec_ray.config:RayConfig",
        summary="Runners as actors of a Ray cluster, around a store server",
        api=1,
    )
