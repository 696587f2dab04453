"""Options of the built-in algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agl_core.plugins import ComponentConfig

__all__ = ["BaselineConfig"]


class BaselineConfig(ComponentConfig):
    """Options of :class:`~agl_core.algorithm.Baseline`."""

    n_epochs: int = Field(default=1, ge=1)
    """Passes over the datasets."""
    train_split: float = Field(default=0.5, gt=0, lt=1)
    """Accepted for compatibility; datasets are used as given."""
    polling_interval: float = Field(default=5.0, gt=0)
    """Longest time between two looks at the queue, in seconds. A store with events wakes the
    algorithm earlier."""
    max_queue_length: int = Field(default=4, ge=0)
    """Tasks that may wait in the queue before another is added."""
    span_verbosity: Literal["keys", "key_values", "none"] = "keys"
    """What to log of each span's attributes: their keys, keys and values, or nothing, not even the
    span."""
