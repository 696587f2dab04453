"""Options of the built-in algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agl_core.plugins import ComponentConfig


class BaselineConfig(ComponentConfig):
    """Options of :class:`~agl_algorithm_kit.Baseline`."""

    n_epochs: int = Field(default=1, ge=1)
    """Passes over the datasets."""
    train_split: float = Field(default=0.5, gt=0, lt=1)
    """Accepted for compatibility; datasets are used as given."""
    polling_interval: float = Field(default=5.0, gt=0)
    """Longest time between two queries of the queue, in seconds. A store with events wakes the
    algorithm earlier."""
    max_queue_length: int = Field(default=4, ge=0)
    """Number of queued tasks at which no further task is added."""
    span_verbosity: Literal["keys", "key_values", "none"] = "keys"
    """What to log about each span: the keys of its attributes, keys and values, or nothing at
    all."""
