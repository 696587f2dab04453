"""Declares the algorithm ``grpo``; its implementation is imported when it is built."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_algorithm() -> ComponentSpec:
    return ComponentSpec(
        kind="algorithm",
        name="grpo",
        factory="agl_algo_grpo.algorithm:GRPO",
        config="agl_algo_grpo.config:GRPOConfig",
        summary="trains a language model by GRPO, on one GPU or a CPU",
        api=1,
    )
