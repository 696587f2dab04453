"""The door to the AgentOps tracer."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_tracer() -> ComponentSpec:
    return ComponentSpec(
        kind="tracer",
        name="agentops",
        factory="agl_tracer_agentops.tracer:AgentOpsTracer",
        config="agl_tracer_agentops.config:AgentOpsTracerConfig",
        summary="the AgentOps SDK's instrumentation, kept local, with token ids",
    )
