"""Counts of rollouts: used in a dataset, or left out for a reason."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agl_core.adapter import AdapterReport

__all__ = ["ExportReport", "Skip"]


class Skip(StrEnum):
    """Why a rollout is left out. The value is the text of the report."""

    OTHER_RUN = "of another run"
    OTHER_MODE = "of another mode"
    OTHER_STATUS = "of another status"
    OTHER_RESOURCES = "ran with other resources"
    NO_ATTEMPT = "has no attempt"
    NO_SPANS = "no spans"
    EVICTED = "its spans were evicted from the store"
    UNREADABLE = "its spans do not form a readable trace"
    NO_REWARD = "no reward"
    NOT_A_NUMBER = "its reward is not a finite number"
    BELOW = "reward below the threshold"
    NO_MESSAGES = "no messages were captured"
    NO_TOKEN_IDS = "no token ids were captured"  # noqa: S105
    NO_LOGPROBS = "log-probabilities are missing"
    GAP = "its context contains a response without token ids"
    DUPLICATE = "has the same content as a better one of its task"
    NOT_BEST = "not among the best of its task"
    NO_PARTNER = "no other rollout of its task differs enough in reward"
    SAME = "has the same content as its partners"
    NO_FORK = "differs from its partners first outside a model's turn"
    TOO_MANY = "its task already has enough pairs"


@dataclass(slots=True)
class ExportReport:
    """Counts of rollouts. Each is either used or left out for one reason.

    Attributes:
        rollouts: Rollouts in the store.
        used: Rollouts in the dataset.
        tasks: Tasks in the dataset.
        rows: Rows by split.
        left_out: Rollouts that were left out, by reason.
        adapters: Parts that the adapters left out, of every rollout that was read: also of one that
            is left out for them, or after it was read.
    """

    rollouts: int = 0
    used: int = 0
    tasks: int = 0
    rows: dict[str, int] = field(default_factory=dict[str, int])
    left_out: Counter[str] = field(default_factory=Counter[str])
    adapters: AdapterReport = field(default_factory=AdapterReport)

    def leave_out(self, reason: Skip, count: int = 1) -> None:
        """Count rollouts that are left out; a count of 0 adds no reason."""
        if count:
            self.left_out[str(reason)] += count

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {
            "rollouts": self.rollouts,
            "used": self.used,
            "tasks": self.tasks,
            "rows": dict(self.rows),
            "left_out": dict(self.left_out.most_common()),
            "adapters": self.adapters.as_dict(),
        }

    def __str__(self) -> str:
        rows = " + ".join(f"{count} {split}" for split, count in self.rows.items()) or "no"
        lines = [f"{self.rollouts} rollouts, {self.used} used: {rows} rows of {self.tasks} tasks"]
        lines += [
            f"left out: {_count(count, 'rollout')} ({why})"
            for why, count in self.left_out.most_common()
        ]
        lines += [
            f"within rollouts, left out: {_count(count, item)} ({why})"
            for (item, why), count in self.adapters.left_out.items()
        ]
        return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
