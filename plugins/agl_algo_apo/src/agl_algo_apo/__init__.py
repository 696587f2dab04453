"""Automatic prompt optimisation: textual gradients and beam search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_algo_apo.algorithm import APO
    from agl_algo_apo.config import APOConfig
    from agl_algo_apo.state import APOState, Candidate
    from agl_prompt_search import Price

__all__ = ["APO", "APOConfig", "APOState", "Candidate", "Price"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "APO": "agl_algo_apo.algorithm",
        "APOConfig": "agl_algo_apo.config",
        "APOState": "agl_algo_apo.state",
        "Candidate": "agl_algo_apo.state",
        "Price": "agl_prompt_search",
    },
)
