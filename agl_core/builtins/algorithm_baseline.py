from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_algorithm() -> ComponentSpec:
    return ComponentSpec(
        kind="algorithm",
        name="baseline",
        factory="agl_core.algorithm.baseline:Baseline",
        config="agl_core.algorithm.config:BaselineConfig",
        summary="Runs the datasets through the agent and reports; learns nothing",
    )
