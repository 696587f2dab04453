"""Marker class of algorithms that are quick enough to try out an agent."""

from __future__ import annotations

from agl_core.algorithm._base import Algorithm


class FastAlgorithm(Algorithm):
    """An algorithm without GPU or training that ends soon; ``Trainer.dev`` accepts only these."""
