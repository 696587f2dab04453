"""Reinforcement learning on one machine: GRPO in PyTorch, and a Hugging Face LLM server.

Public names are imported when they are first used; PyTorch only when something runs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_algo_grpo.algorithm import GRPO
    from agl_algo_grpo.config import GRPOConfig, HFServerConfig, LoRAConfig
    from agl_algo_grpo.hf.server import HFServer

__all__ = ["GRPO", "GRPOConfig", "HFServer", "HFServerConfig", "LoRAConfig"]

_HOMES = {
    "GRPO": "agl_algo_grpo.algorithm",
    "GRPOConfig": "agl_algo_grpo.config",
    "HFServer": "agl_algo_grpo.hf.server",
    "HFServerConfig": "agl_algo_grpo.config",
    "LoRAConfig": "agl_algo_grpo.config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
