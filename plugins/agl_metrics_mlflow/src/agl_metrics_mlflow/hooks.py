"""Hook of this package: the tracker ``mlflow``."""

from agl_core.plugins import ComponentSpec, hookimpl


@hookimpl
def agl_metrics() -> ComponentSpec:
    return ComponentSpec(
        kind="metrics",
        name="mlflow",
        factory="agl_metrics_mlflow:MlflowTracker",
        config="agl_metrics_mlflow:MlflowConfig",
        summary="Runs of agl in MLflow",
        api=1,
    )
