"""Reflective prompt evolution with a Pareto front, by the ``gepa`` library."""

from agl_algo_gepa.algorithm import GEPA
from agl_algo_gepa.config import GEPAConfig
from agl_algo_gepa.state import Candidate, GEPAState
from agl_prompt_search import Price

__all__ = ["GEPA", "Candidate", "GEPAConfig", "GEPAState", "Price"]
