"""Reflective prompt evolution with a Pareto front, by the ``gepa`` library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_algo_gepa.algorithm import GEPA
    from agl_algo_gepa.config import GEPAConfig
    from agl_algo_gepa.state import Candidate, GEPAState
    from agl_prompt_search import Price

__all__ = ["GEPA", "Candidate", "GEPAConfig", "GEPAState", "Price"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "GEPA": "agl_algo_gepa.algorithm",
        "Candidate": "agl_algo_gepa.state",
        "GEPAConfig": "agl_algo_gepa.config",
        "GEPAState": "agl_algo_gepa.state",
        "Price": "agl_prompt_search",
    },
)
