"""Reinforcement learning of language models, on verl's trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_algo_verl.algorithm import VERL
    from agl_algo_verl.config import VERLConfig

__all__ = ["VERL", "VERLConfig"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "VERL": "agl_algo_verl.algorithm",
        "VERLConfig": "agl_algo_verl.config",
    },
)
