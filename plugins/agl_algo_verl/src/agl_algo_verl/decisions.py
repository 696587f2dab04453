"""The decision on each rollout: train on it, retry it, drop it or penalise it.

Pure functions. Every reason has a name, under which the metrics count it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Literal

from agl_algo_verl.config import VERLConfig
from agl_algo_verl.rows import Fit, Row, fit_rows
from agl_core.types import RolloutStatus

__all__ = ["FAILURE", "Decision", "Limits", "Reason", "decide"]

FAILURE: Final = -math.inf
"""Reward of a rollout that failed, until its group is known: below all others of it."""


class Reason(StrEnum):
    """Why a rollout, or some of its rows, cannot be used unchanged."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    NO_REWARD = "no_reward"
    NO_ROWS = "no_rows"
    OVERLONG = "overlong"
    NO_LOGPROBS = "no_logprobs"
    OTHER_SAMPLING = "other_sampling"

    @property
    def is_lasting(self) -> bool:
        """Whether the agent or the configuration causes it, so that a retry would not help."""
        return self in (Reason.NO_LOGPROBS, Reason.OTHER_SAMPLING)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of rows.

    Attributes:
        max_prompt: Limit of a prompt, in tokens.
        max_response: Limit of a response, in tokens.
        needs_logprobs: Whether rows need log-probabilities; otherwise they are removed.
    """

    max_prompt: int
    max_response: int
    needs_logprobs: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one rollout.

    Attributes:
        action: ``keep`` its rows, ``retry`` it, or ``drop`` it.
        rows: Rows to train on; empty unless it is kept.
        reward: Reward of these rows; :data:`FAILURE` until its group is known.
        reason: What is wrong with the rollout; None if nothing is.
        penalised: Whether the reward is the penalty.
        fit: Rows within the limits, and the number beyond them.
        without_logprobs: Number of rows dropped for missing log-probabilities.
        rewards: The numbers of the reward by the agents' names, where credit by turn needs them.
        otherwise: Parameters, as ``name=value``, with which its calls were sampled and which are
            not those of training.
    """

    action: Literal["keep", "retry", "drop"]
    rows: Sequence[Row] = ()
    reward: float = FAILURE
    reason: Reason | None = None
    penalised: bool = False
    fit: Fit = field(default_factory=lambda: Fit([]))
    without_logprobs: int = 0
    rewards: Mapping[str, float] = field(default_factory=dict[str, float])
    otherwise: Sequence[str] = ()


def decide(
    status: RolloutStatus,
    reward: float | None,
    rows: Sequence[Row],
    *,
    limits: Limits,
    options: VERLConfig,
    may_retry: bool,
) -> Decision:
    """Decide about a rollout that has ended.

    Args:
        status: Final status of the rollout.
        reward: Its final reward, if it has one.
        rows: Rows of its last attempt.
        limits: Limits of rows.
        options: Options of the algorithm.
        may_retry: Whether a retry is left.
    """
    if limits.needs_logprobs:
        usable = [row for row in rows if row.logprobs is not None]
    else:  # verl cannot store a column that only some rows have
        usable = [replace(row, logprobs=None) for row in rows]
    without = len(rows) - len(usable)
    otherwise = tuple(dict.fromkeys(name for row in rows for name in row.otherwise))
    if otherwise:
        usable = []  # they are not penalised, either: verl trains another distribution
    if reward is None:
        reward = options.missing_reward
    penalty = FAILURE if options.penalty is None else options.penalty
    problem = _problem(status, reward, rows, usable, otherwise)
    if problem is not None:
        may_help = status != "cancelled" and not problem.is_lasting
        if options.on_failed == "retry" and may_retry and may_help:
            return Decision("retry", reason=problem, without_logprobs=without)
        penalised = options.on_failed == "penalise"
        fit = fit_rows(usable, limits.max_prompt, limits.max_response, cut=True)
        if penalised and fit.rows:
            return Decision("keep", fit.rows, penalty, problem, True, fit, without)
        return Decision(
            "drop", reason=problem, fit=fit, without_logprobs=without, otherwise=otherwise
        )

    assert reward is not None  # otherwise _problem() found it
    penalised = options.on_overlong == "penalise"
    fit = fit_rows(usable, limits.max_prompt, limits.max_response, cut=penalised)
    if not fit.over:
        return Decision("keep", fit.rows, reward, None, False, fit, without)
    if options.on_overlong == "retry" and may_retry:
        return Decision("retry", reason=Reason.OVERLONG, fit=fit, without_logprobs=without)
    if not fit.rows:
        return Decision("drop", reason=Reason.OVERLONG, fit=fit, without_logprobs=without)
    paid = penalty if penalised else reward
    return Decision("keep", fit.rows, paid, Reason.OVERLONG, penalised, fit, without)


def _problem(
    status: RolloutStatus,
    reward: float | None,
    rows: Sequence[Row],
    usable: Sequence[Row],
    otherwise: Sequence[str],
) -> Reason | None:
    if status == "cancelled":
        return Reason.CANCELLED
    if status != "succeeded":
        return Reason.FAILED
    if reward is None or not math.isfinite(reward):
        return Reason.NO_REWARD
    if not rows:
        return Reason.NO_ROWS
    if otherwise:
        return Reason.OTHER_SAMPLING
    if not usable:
        return Reason.NO_LOGPROBS
    return None
