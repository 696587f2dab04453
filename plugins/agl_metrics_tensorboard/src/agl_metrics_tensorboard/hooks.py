"""Hook of this package: the tracker ``tensorboard``."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_metrics() -> ComponentSpec:
    return ComponentSpec(
        kind="metrics",
        name="tensorboard",
        factory="agl_metrics_tensorboard:TensorBoardTracker",
        config="agl_metrics_tensorboard:TensorBoardConfig",
        summary="Runs of agl as event files of TensorBoard",
        api=1,
    )
