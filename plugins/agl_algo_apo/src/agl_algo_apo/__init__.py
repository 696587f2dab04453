"""Automatic prompt optimisation: textual gradients and beam search."""

from agl_algo_apo.algorithm import APO
from agl_algo_apo.config import APOConfig
from agl_algo_apo.state import APOState, Candidate
from agl_prompt_search import Price

__all__ = ["APO", "APOConfig", "APOState", "Candidate", "Price"]
