"""The built-in tracer ``dummy``."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_tracer() -> ComponentSpec:
    return ComponentSpec(
        kind="tracer",
        name="dummy",
        factory="agl_core.tracer.dummy:DummyTracer",
        config="agl_core.tracer.config:DummyTracerConfig",
        summary="Records nothing: only what an agent returns is stored",
    )
