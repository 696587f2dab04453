"""The estimator that the options name."""

from __future__ import annotations

from collections.abc import Sequence

from agl_credit.config import CreditConfig
from agl_credit.forked import forked_advantages
from agl_credit.paths import Floats, Path
from agl_credit.prefixes import rtmc_advantages, tempo_advantages
from agl_credit.returns import agent_advantages, group_advantages, turn_advantages

__all__ = ["call_advantages"]


def call_advantages(
    group: Sequence[Path], credit: CreditConfig, *, normalise: bool = True
) -> list[Floats]:
    """Return the advantages of a group's calls.

    Args:
        group: Rollouts of one task, and their forks.
        credit: The estimator and its options.
        normalise: Divide by a standard deviation of the group.

    Returns:
        float64 ``[T]`` of each path, the calls that a fork repeats included.
    """
    match credit.type:
        case "group":
            return group_advantages(group, normalise=normalise)
        case "discounted" | "leave-one-turn-out":
            return turn_advantages(
                group,
                discount=credit.discount,
                leave_one_out=credit.type == "leave-one-turn-out",
                normalise=normalise,
            )
        case "tempo":
            return tempo_advantages(group, normalise=normalise)
        case "rtmc":
            return rtmc_advantages(group, normalise=normalise)
        case "agents":
            return agent_advantages(group, normalise=normalise)
        case "forked":
            return forked_advantages(group, normalise=normalise)
