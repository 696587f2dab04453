"""Runs of agl in MLflow."""

from agl_metrics_mlflow.tracker import MlflowConfig, MlflowTracker

__all__ = ["MlflowConfig", "MlflowTracker"]
