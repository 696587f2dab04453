"""A model as judge: it grades conversations by a rubric, and its grades become rewards.

:func:`rescore` applies a judge, or any other scorer, to stored rollouts.
"""

from agl_judge.agreement import Agreement, agreement
from agl_judge.judge import Judge, Verdict
from agl_judge.rescore import Rescored, Scorer, rescore

__all__ = [
    "Agreement",
    "Judge",
    "Rescored",
    "Scorer",
    "Verdict",
    "agreement",
    "rescore",
]
