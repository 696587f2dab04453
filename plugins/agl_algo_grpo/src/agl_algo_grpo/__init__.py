"""Reinforcement learning on one machine: GRPO in PyTorch.

Public names are imported on first use; PyTorch is imported when training starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_algo_grpo.algorithm import GRPO
    from agl_algo_grpo.config import CreditConfig, GRPOConfig, LoRAConfig, PolicyConfig

__all__ = ["GRPO", "CreditConfig", "GRPOConfig", "LoRAConfig", "PolicyConfig"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "GRPO": "agl_algo_grpo.algorithm",
        "CreditConfig": "agl_algo_grpo.config",
        "GRPOConfig": "agl_algo_grpo.config",
        "LoRAConfig": "agl_algo_grpo.config",
        "PolicyConfig": "agl_algo_grpo.config",
    },
)
