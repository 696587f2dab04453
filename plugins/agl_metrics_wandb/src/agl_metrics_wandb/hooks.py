"""Hook of this package: the tracker ``wandb``."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_metrics() -> ComponentSpec:
    return ComponentSpec(
        kind="metrics",
        name="wandb",
        factory="agl_metrics_wandb:WandbTracker",
        config="agl_metrics_wandb:WandbConfig",
        summary="Runs of agl in Weights & Biases, also offline",
        api=1,
    )
