"""Declares the algorithm and the doctor's check ``verl``; each is imported on use."""

from __future__ import annotations

from agl_core.plugins import CheckSpec, ComponentSpec, hookimpl


@hookimpl
def agl_algorithm() -> ComponentSpec:
    return ComponentSpec(
        kind="algorithm",
        name="verl",
        factory="agl_algo_verl.algorithm:VERL",
        config="agl_algo_verl.config:VERLConfig",
        summary="trains a language model by reinforcement learning, on verl's trainer",
        api=1,
    )


@hookimpl
def agl_check() -> CheckSpec:
    return CheckSpec(
        name="verl",
        check="agl_algo_verl.check:check_versions",
        summary="Versions that do not work with verl",
        api=1,
    )
