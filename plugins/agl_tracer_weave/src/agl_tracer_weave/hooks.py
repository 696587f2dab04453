"""Hooks of ``tracer.weave``: the tracer, and the dialect of Weave's spans."""

from agl_core.plugins import ComponentSpec, DialectSpec, hookimpl


@hookimpl
def agl_tracer() -> ComponentSpec:
    return ComponentSpec(
        kind="tracer",
        name="weave",
        factory="agl_tracer_weave:WeaveTracer",
        config="agl_tracer_weave:WeaveTracerConfig",
        summary="the Weave SDK, whose calls are kept local and stored as spans",
        api=1,
    )


@hookimpl
def agl_dialect() -> DialectSpec:
    return DialectSpec(
        name="weave",
        dialect="agl_tracer_weave.dialect:WEAVE",
        summary="Agents in spans of Weave's integrations",
        api=1,
    )
