"""Reinforcement learning of language models, on verl's trainer."""

from agl_algo_verl.algorithm import VERL
from agl_algo_verl.config import VERLConfig

__all__ = ["VERL", "VERLConfig"]
