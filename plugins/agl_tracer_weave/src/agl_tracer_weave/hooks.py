"""The door to the Weave tracer."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_tracer() -> ComponentSpec:
    return ComponentSpec(
        kind="tracer",
        name="weave",
        factory="agl_tracer_weave.tracer:WeaveTracer",
        config="agl_tracer_weave.config:WeaveTracerConfig",
        summary="the Weave SDK, whose calls are kept local and stored as spans",
    )
