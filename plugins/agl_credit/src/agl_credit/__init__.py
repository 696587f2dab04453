"""Credit by turn: the advantage of each model call of a rollout, from the rollouts of its group.

Pure functions over NumPy arrays. A group is a list of :class:`Path`; each estimator returns the
advantages of every path's turns.
"""

from __future__ import annotations

from agl_credit.budget import By, ForkPoint, TurnSpread, choose_forks
from agl_credit.config import CreditConfig
from agl_credit.estimators import call_advantages
from agl_credit.forked import forked_advantages
from agl_credit.paths import Path, Turn
from agl_credit.prefixes import rtmc_advantages, tempo_advantages
from agl_credit.returns import agent_advantages, group_advantages, turn_advantages
from agl_credit.rewards import named_rewards
from agl_credit.rows import row_turns

__all__ = [
    "By",
    "CreditConfig",
    "ForkPoint",
    "Path",
    "Turn",
    "TurnSpread",
    "agent_advantages",
    "call_advantages",
    "choose_forks",
    "forked_advantages",
    "group_advantages",
    "named_rewards",
    "row_turns",
    "rtmc_advantages",
    "tempo_advantages",
    "turn_advantages",
]
