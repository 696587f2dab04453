"""Hooks of shared-memory execution."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_execution() -> ComponentSpec:
    return ComponentSpec(
        kind="execution",
        name="shm",
        factory="agl_exec_shm:SharedMemoryExecutionStrategy",
        config="agl_exec_shm.config:SharedMemoryConfig",
        summary="Algorithm and runners as threads of one process",
        api=1,
    )
