"""Runs of agl in TensorBoard."""

from agl_metrics_tensorboard.tracker import TensorBoardConfig, TensorBoardTracker

__all__ = ["TensorBoardConfig", "TensorBoardTracker"]
