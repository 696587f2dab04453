"""What becomes of a rollout, by policy: trained on, tried again, dropped or penalised.

Pure functions; every reason has a name, under which it is counted in the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from agl_algo_verl.config import VERLConfig
from agl_algo_verl.rows import Fit, Row, fit_rows
from agl_core.types import RolloutStatus

__all__ = ["Limits", "Reason", "Verdict", "judge"]


class Reason(StrEnum):
    """Why a rollout, or rows of it, cannot be trained on as they are."""

    FAILED = "failed"
    CANCELLED = "cancelled"
    NO_REWARD = "no_reward"
    NO_ROWS = "no_rows"
    OVERLONG = "overlong"
    NO_LOGPROBS = "no_logprobs"


@dataclass(frozen=True, slots=True)
class Limits:
    """What rows must keep to.

    Attributes:
        max_prompt: Tokens of a prompt.
        max_response: Tokens of a response.
        needs_logprobs: Whether rows need log-probabilities; if not, those there are are taken off.
    """

    max_prompt: int
    max_response: int
    needs_logprobs: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a rollout.

    Attributes:
        action: ``keep`` its rows, ``retry`` it, or ``drop`` it.
        rows: Rows to train on; some if it is kept, else none.
        reward: The reward they get.
        reason: What is wrong with it; None if nothing is.
        penalised: Whether its reward is the penalty.
        fit: What was over a limit.
        without_logprobs: Rows left out because they have no log-probabilities.
    """

    action: Literal["keep", "retry", "drop"]
    rows: Sequence[Row] = ()
    reward: float = 0.0
    reason: Reason | None = None
    penalised: bool = False
    fit: Fit = field(default_factory=lambda: Fit([]))
    without_logprobs: int = 0


def judge(
    status: RolloutStatus,
    reward: float | None,
    rows: Sequence[Row],
    *,
    limits: Limits,
    options: VERLConfig,
    may_retry: bool,
) -> Verdict:
    """Decide about a rollout that has ended.

    Args:
        status: How it ended.
        reward: Its final reward, if it gave one.
        rows: The rows of its last attempt.
        limits: What rows must keep to.
        options: The policies.
        may_retry: Whether it has tries left.
    """
    if limits.needs_logprobs:
        usable = [row for row in rows if row.logprobs is not None]
    else:  # a column that only some rows have cannot be stored
        usable = [replace(row, logprobs=None) for row in rows]
    without = len(rows) - len(usable)
    if reward is None:
        reward = options.missing_reward
    trouble = _trouble(status, reward, rows, usable)
    if trouble is not None:
        if options.on_failed == "retry" and may_retry and status != "cancelled":
            return Verdict("retry", reason=trouble, without_logprobs=without)
        penalised = options.on_failed == "penalise"
        fit = fit_rows(usable, limits.max_prompt, limits.max_response, cut=True)
        if penalised and fit.rows:
            return Verdict("keep", fit.rows, options.penalty, trouble, True, fit, without)
        return Verdict("drop", reason=trouble, fit=fit, without_logprobs=without)

    assert reward is not None  # else it would have been trouble
    penalised = options.on_overlong == "penalise"
    fit = fit_rows(usable, limits.max_prompt, limits.max_response, cut=penalised)
    if not fit.over:
        return Verdict("keep", fit.rows, reward, None, False, fit, without)
    if options.on_overlong == "retry" and may_retry:
        return Verdict("retry", reason=Reason.OVERLONG, fit=fit, without_logprobs=without)
    if not fit.rows:
        return Verdict("drop", reason=Reason.OVERLONG, fit=fit, without_logprobs=without)
    paid = options.penalty if penalised else reward
    return Verdict("keep", fit.rows, paid, Reason.OVERLONG, penalised, fit, without)


def _trouble(
    status: RolloutStatus, reward: float | None, rows: Sequence[Row], usable: Sequence[Row]
) -> Reason | None:
    if status == "cancelled":
        return Reason.CANCELLED
    if status != "succeeded":
        return Reason.FAILED
    if reward is None:
        return Reason.NO_REWARD
    if not rows:
        return Reason.NO_ROWS
    if not usable:
        return Reason.NO_LOGPROBS
    return None
