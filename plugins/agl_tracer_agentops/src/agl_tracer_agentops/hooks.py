"""Hooks of ``tracer.agentops``: the tracer, and the dialect of AgentOps' spans."""

from agl_core.plugins import ComponentSpec, DialectSpec, hookimpl


@hookimpl
def agl_tracer() -> ComponentSpec:
    return ComponentSpec(
        kind="tracer",
        name="agentops",
        factory="agl_tracer_agentops:AgentOpsTracer",
        config="agl_tracer_agentops:AgentOpsTracerConfig",
        summary="the AgentOps SDK's instrumentation, kept local, with token ids",
        api=1,
    )


@hookimpl
def agl_dialect() -> DialectSpec:
    return DialectSpec(
        name="agentops",
        dialect="agl_tracer_agentops.dialect:AGENTOPS",
        summary="Agents in spans of AgentOps' instrumentation",
        api=1,
    )
