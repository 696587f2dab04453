"""Automatic prompt optimisation: textual gradients and beam search."""

from agl_algo_apo.algorithm import APO
from agl_algo_apo.config import APOConfig, Price
from agl_algo_apo.state import APOState, Candidate

__all__ = ["APO", "APOConfig", "APOState", "Candidate", "Price"]
