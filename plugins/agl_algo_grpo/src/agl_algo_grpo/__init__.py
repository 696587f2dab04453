"""Reinforcement learning on one machine: GRPO in PyTorch.

Public names are imported on first use; PyTorch is imported when training starts.
"""

from agl_core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
