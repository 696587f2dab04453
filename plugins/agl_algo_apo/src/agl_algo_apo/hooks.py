"""Declares the algorithm ``apo``; its implementation is imported when it is built."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_algorithm() -> ComponentSpec:
    return ComponentSpec(
        kind="algorithm",
        name="apo",
        factory="agl_algo_apo.algorithm:APO",
        config="agl_algo_apo.config:APOConfig",
        summary="improves a prompt: a model criticises and edits it, beam search chooses",
        api=1,
    )
