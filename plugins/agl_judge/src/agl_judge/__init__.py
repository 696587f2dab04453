"""A model as judge: it grades conversations by a rubric, and its grades become rewards.

:func:`rescore` applies a judge, or any other scorer, to stored rollouts. Everything is imported on
first use, since the command's hooks are light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_judge.judge import Judge, Verdict
    from agl_judge.rescoring import Rescored, Scorer, rescore
    from agl_judge.scorer_agreement import Agreement, agreement

__all__ = [
    "Agreement",
    "Judge",
    "Rescored",
    "Scorer",
    "Verdict",
    "agreement",
    "rescore",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Agreement", "agreement"), "agl_judge.scorer_agreement"),
        **dict.fromkeys(("Judge", "Verdict"), "agl_judge.judge"),
        **dict.fromkeys(("Rescored", "Scorer", "rescore"), "agl_judge.rescoring"),
    },
)
