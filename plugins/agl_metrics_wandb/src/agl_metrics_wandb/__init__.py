"""Runs of agl in Weights & Biases."""

from agl_metrics_wandb.tracker import WandbConfig, WandbTracker

__all__ = ["WandbConfig", "WandbTracker"]
