"""Declares the algorithm ``gepa``; its implementation is imported when it is built."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_algorithm() -> ComponentSpec:
    return ComponentSpec(
        kind="algorithm",
        name="gepa",
        factory="agl_algo_gepa.algorithm:GEPA",
        config="agl_algo_gepa.config:GEPAConfig",
        summary="evolves an agent's prompts: a model reflects on runs, a Pareto front chooses",
        api=1,
    )
