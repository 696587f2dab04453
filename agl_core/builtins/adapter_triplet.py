"""The built-in adapter ``triplet``."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_adapter() -> ComponentSpec:
    return ComponentSpec(
        kind="adapter",
        name="triplet",
        factory="agl_core.adapter.triplet:TracerTraceToTriplet",
        config="agl_core.adapter.config:TripletConfig",
        summary="One triplet per model call that a tracer recorded",
    )
