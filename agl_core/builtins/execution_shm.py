from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_execution() -> ComponentSpec:
    return ComponentSpec(
        kind="execution",
        name="shm",
        factory="agl_core.execution.shared_memory:SharedMemoryExecutionStrategy",
        config="agl_core.execution.config:SharedMemoryConfig",
        summary="Algorithm and runners as threads of one process",
    )
