"""The marker of algorithms that are good for a quick look at an agent."""

from __future__ import annotations

from agl_core.algorithm._base import Algorithm

__all__ = ["FastAlgorithm"]


class FastAlgorithm(Algorithm):
    """An algorithm that needs no GPU, no training and little time: what ``Trainer.dev`` takes."""
