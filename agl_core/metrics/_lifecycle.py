"""Records what life-cycle events report: attempts, rollouts, steps of algorithms, runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from agl_core.metrics._active import record
from agl_core.metrics._base import Metric
from agl_core.plugins import hookimpl
from agl_core.types import AttemptedRollout, Rollout

_ROLLOUT: Final = ("status", "mode")


def _duration(of: str, description: str) -> Metric:
    names = f"agl.{of}.duration", f"agl.{of}.total"
    return Metric("histogram", names[0], description, _ROLLOUT, "s", count=names[1])


ROLLOUT_SECONDS: Final = _duration("rollouts", "Time from enqueueing to the end.")
ATTEMPT_SECONDS: Final = _duration("attempts", "Time that agents ran.")
REWARDS: Final = Metric(
    "histogram",
    "agl.attempts.reward",
    "Final rewards of attempts.",
    ("mode",),
    buckets=(-10, -5, -2, -1, -0.5, 0, *(tenth / 10 for tenth in range(1, 11)), 2, 5, 10),
)
# Prometheus has no sum of a histogram with negative bounds: a sum that may shrink is not a counter.
REWARD_SUM: Final = Metric("counter", "agl.rewards.sum", "Sum of rewards.", ("mode", "sign"))
STEPS: Final = Metric("counter", "agl.algorithm.steps", "Steps of algorithms.", ("algorithm",))
VALUES: Final = Metric(
    "gauge", "agl.algorithm.value", "Last value of a step's metric.", ("algorithm", "metric")
)
RUNS: Final = Metric("counter", "agl.runs.total", "Runs of trainers that ended.", _ROLLOUT)


@hookimpl
def rollout_ended(rollout: Rollout) -> None:
    seconds = max(0.0, (rollout.end_time or rollout.start_time) - rollout.start_time)
    record(ROLLOUT_SECONDS, seconds, rollout.status, rollout.mode or "unknown")


@hookimpl
def attempt_finished(
    rollout: AttemptedRollout, status: str, reward: float | None, duration: float
) -> None:
    mode = rollout.mode or "unknown"
    record(ATTEMPT_SECONDS, duration, status, mode)
    if reward is not None and math.isfinite(reward):
        record(REWARDS, reward, mode)
        record(REWARD_SUM, max(reward, 0.0), mode, "positive")
        record(REWARD_SUM, max(-reward, 0.0), mode, "negative")


@hookimpl
def algorithm_step(algorithm: str, metrics: Mapping[str, float]) -> None:
    record(STEPS, 1, algorithm)
    for name, value in metrics.items():
        record(VALUES, value, algorithm, name)


@hookimpl
def run_finished(mode: str, error: BaseException | None) -> None:
    record(RUNS, 1, "OK" if error is None else type(error).__name__, mode)
