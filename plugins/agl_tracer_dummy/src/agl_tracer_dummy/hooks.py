"""Registers the tracer ``dummy``."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_tracer() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="tracer",
            name="dummy",
            factory="agl_tracer_dummy:DummyTracer",
            config="agl_tracer_dummy:DummyTracerConfig",
            summary="Records nothing: only what an agent returns is stored",
            api=1,
        )
    ]
