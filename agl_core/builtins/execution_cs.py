from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_execution() -> ComponentSpec:
    return ComponentSpec(
        kind="execution",
        name="cs",
        factory="agl_core.execution.client_server:ClientServerExecutionStrategy",
        config="agl_core.execution.config:ClientServerConfig",
        summary="Runners as processes, here and on other machines, around a store server",
    )
