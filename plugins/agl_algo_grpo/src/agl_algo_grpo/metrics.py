"""Metrics of a run: a log line per step, a CSV file, a learning curve."""

from __future__ import annotations

import csv
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from agl_algo_grpo.validation import rank_all
from agl_core.algorithm import RewardRange

__all__ = ["COLUMNS", "Metrics", "draw_curve"]

logger = logging.getLogger("agl_algo_grpo")

COLUMNS: Final[tuple[str, ...]] = (
    "step",
    "reward",
    "reward_std",
    "val_reward",
    "val_reward_low",
    "val_reward_high",
    "val_reward_tasks",
    "val_rank",
    "val_earned",
    "val_lowest",
    "val_highest",
    "val_finished",
    "val_failed",
    "logprob_delta",
    "logprob_delta_mean",
    "logprob_delta_p99",
    "loss",
    "kl",
    "entropy",
    "staleness",
    "clipped",
    "ratio_max",
    "grad_norm",
    "refused_updates",
    "learning_rate",
    "rollouts",
    "rows",
    "tokens",
    "computed_tokens",
    "sampled_tokens",
    "forks",
    "skipped_forks",
    "dropped_rollouts",
    "dropped_rows",
    "rows_after_a_break",
    "dropped_groups",
    "partial_groups",
    "uniform_groups",
    "retried_rollouts",
    "server_restarts",
    "seconds",
    "rollout_seconds",
    "wait_seconds",
    "train_seconds",
    "publish_seconds",
    "version",
    "dropped",
)
"""Columns of ``metrics.csv``. Seconds are wall clock: ``rollout_seconds`` is the time of a step's
rollouts, ``wait_seconds`` the time that training waited for them. ``tokens`` are those of the rows,
prompts included; ``computed_tokens`` those of the forward passes over them, in which a common
beginning counts once and padding counts; ``sampled_tokens`` those that models sampled in the
step, in dropped rollouts and forks too. ``val_rank`` is the mean that chooses the best model: a
failure counts less than every finished rollout in it, so all steps are ranked anew with each
validation, by the mean, the lowest and the highest reward of the rollouts that finished
(``val_earned``, ``val_lowest``, ``val_highest``) and their numbers (``val_finished``,
``val_failed``). ``dropped`` lists the reasons in words."""


class Metrics:
    """Metrics of each step, in memory and in a file.

    Args:
        folder: Folder of ``metrics.csv``; rows of an earlier process are kept.
        first: Number of the next step. Rows of that step and later ones are removed from the file,
            because a resumed run repeats those steps.
        label: Begin of log lines, such as the policy's name; may be empty.
        reward_range: Lowest and highest possible reward, if they are declared.
    """

    def __init__(
        self, folder: Path, first: int, label: str = "", reward_range: RewardRange | None = None
    ) -> None:
        self._label = label
        self._reward_range = reward_range
        self._path = folder / "metrics.csv"
        self.steps: list[dict[str, Any]] = []
        if self._path.is_file():
            with self._path.open(newline="", encoding="utf-8") as file:
                # A file of another version may have columns that are not known here.
                rows = [
                    {key: row.get(key) or "" for key in COLUMNS} for row in csv.DictReader(file)
                ]
            self.steps = [row for row in rows if int(row["step"]) < first]
        self._write()

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Log the metrics of a step and write them to the file."""
        self.steps.append({key: metrics.get(key, "") for key in COLUMNS})
        if "val_finished" in metrics:
            rank_all(self.steps, self._reward_range)
        self._write()
        logger.info(
            "%sstep %d: reward %s, %d rollouts, %d rows, loss %.4f, |Δ logprob| %.1e, %.1f s%s",
            self._label,
            metrics["step"],
            _number(metrics.get("reward")),
            metrics["rollouts"],
            metrics["rows"],
            metrics.get("loss", 0.0),
            metrics.get("logprob_delta", 0.0),
            metrics["seconds"],
            f"; dropped: {metrics['dropped']}" if metrics.get("dropped") else "",
        )

    def column(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of each step that has a value."""
        known = (row for row in self.steps if row.get(name, "") != "")
        return [(int(row["step"]), float(row[name])) for row in known]

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(self.steps)
        part.replace(self._path)


def draw_curve(path: Path, curves: Mapping[str, Sequence[tuple[int, float]]]) -> bool:
    """Draw learning curves; return False if matplotlib is not installed.

    Args:
        path: File of the image.
        curves: (step, reward) points by name.
    """
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, points in curves.items():
        if points:
            axes.plot(*zip(*points, strict=True), label=name, marker="." if name == "val" else "")
    axes.set(xlabel="step", ylabel="mean reward")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return True


def _number(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else "-"
