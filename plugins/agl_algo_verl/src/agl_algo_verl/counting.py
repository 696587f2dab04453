"""Counts of groups of rollouts, for the metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agl_adapter_trajectory import TrajectoryReport
from agl_algo_verl.decisions import Decision
from agl_algo_verl.rows import Row
from agl_core.adapter import AdapterReport

__all__ = ["ALWAYS", "Tally"]


class Tally:
    """Counts of one group, which are added to the totals when the group has ended."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.rewards: list[float] = []
        self.spreads: list[float] = []

    def count(self, **numbers: int) -> None:
        self.counts.update(numbers)

    def note(
        self,
        decision: Decision,
        rows: Sequence[Row],
        reward: float | None,
        report: AdapterReport,
        *,
        fork: bool = False,
    ) -> None:
        """Count a rollout that has ended, or a fork of one."""
        word = "forks" if fork else "rollouts"
        if decision.reason is not None:
            self.count(**{f"{word}_{decision.reason}": 1})
        if decision.action == "retry":
            self.count(rollouts_retried=1)
            return
        self.count(**{word: 1, f"{word}_dropped": int(decision.action == "drop")})
        if not fork:
            self.rewards.append(decision.reward)
            self.count(
                rollouts_with_rows=int(bool(rows)),
                rollouts_with_reward=int(reward is not None),
                rollouts_penalised=int(decision.penalised),
            )
        self.count(
            rows_dropped=len(rows) - len(decision.rows),
            rows_prompt_too_long=decision.fit.prompt_too_long,
            rows_response_too_long=decision.fit.response_too_long,
            rows_without_logprobs=decision.without_logprobs,
            calls_without_token_ids=report.count("call", "no token ids"),
        )
        if isinstance(report, TrajectoryReport):
            self.count(
                rows_after_a_break=report.certificates.breaks.total(),
                rows_of_several_versions=report.certificates.mixed,
                rows_of_altered_sampling=report.certificates.altered,
            )


ALWAYS = (
    "attempts_lost",
    "groups",
    "groups_dropped",
    "groups_partial",
    "rollouts",
    "rollouts_dropped",
    "rollouts_failed",
    "rollouts_penalised",
    "rollouts_retried",
    "rows",
    "rows_dropped",
)
"""Counts that are reported even if they are 0, so that their curves have no gaps."""
