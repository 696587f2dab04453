"""Registers the runs that can be resumed, and the algorithms that update nothing."""

from __future__ import annotations

from agl_core.plugins import ComponentSpec, RunSpec, hookimpl


@hookimpl
def agl_algorithm() -> list[ComponentSpec]:
    return [
        ComponentSpec(
            kind="algorithm",
            name="baseline",
            factory="agl_algorithm_kit:Baseline",
            config="agl_algorithm_kit.config:BaselineConfig",
            summary="Runs the datasets through the agent and reports; learns nothing",
            api=1,
        ),
        ComponentSpec(
            kind="algorithm",
            name="evaluation",
            factory="agl_algorithm_kit:Evaluation",
            summary="Measures one snapshot of resources on a dataset; learns nothing",
            api=1,
        ),
        ComponentSpec(
            kind="algorithm",
            name="comparison",
            factory="agl_algorithm_kit:Comparison",
            summary="Measures two snapshots of resources on the same tasks; learns nothing",
            api=1,
        ),
    ]


@hookimpl
def agl_run() -> RunSpec:
    return RunSpec(
        "stored",
        run="agl_algorithm_kit:StoredRun",
        summary="Keeps state, rollouts and steps of a run in its store",
        api=1,
    )
