"""What can be configured about the built-in algorithms."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["BaselineConfig"]


class BaselineConfig(BaseModel):
    """Options of :class:`~agl_core.algorithm._baseline.Baseline`."""

    model_config = ConfigDict(extra="forbid")

    n_epochs: int = Field(default=1, ge=1, description="Passes over the datasets")
    train_split: float = Field(
        default=0.5, gt=0, lt=1, description="Accepted for compatibility; not used"
    )
    polling_interval: float = Field(
        default=5.0, gt=0, description="Longest time between two looks at the queue, in seconds"
    )
    max_queue_length: int = Field(
        default=4, ge=0, description="Tasks that may wait in the queue before another is added"
    )
    span_verbosity: Literal["keys", "key_values", "none"] = Field(
        default="keys", description="What to log of each span's attributes"
    )
