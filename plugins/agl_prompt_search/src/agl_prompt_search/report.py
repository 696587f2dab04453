"""Progress of a search: tables in a terminal, log lines elsewhere, files at the end."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agl_cli_kit import error_console
from agl_core.algorithm import ProgressReporter
from agl_core.statistics import Estimate
from agl_prompt_search.state import Candidate, SearchState

__all__ = ["Reporter", "write_files"]

logger = logging.getLogger(__name__)

_HEADINGS = ("version", "parent", "score", "95 % interval", "result")


class Reporter:
    """Reports the progress of a search.

    Args:
        progress: Progress bar that counts rounds.
        report_step: Called with the metrics of each round.
        name: Prefix of the metrics' names.
    """

    def __init__(
        self,
        progress: ProgressReporter,
        report_step: Callable[[int, Mapping[str, float]], None],
        name: str,
    ) -> None:
        self._progress = progress
        self._report_step = report_step
        self._name = name
        self._terminal = sys.stderr.isatty()

    def started(self, state: SearchState[Any]) -> None:
        """Report that the seed was measured."""
        self._tell(f"start: {_standing(state)}")
        self._step(state)

    def resumed(self, state: SearchState[Any]) -> None:
        """Report that a run was resumed."""
        self._tell(f"resumed after round {state.rounds}: {_standing(state)}")

    def proposed(self, candidate: Candidate) -> None:
        """Report that a candidate was proposed or rejected."""
        if candidate.rejected:
            self._tell(f"{candidate.version} is rejected: {candidate.rejected}")
        else:
            logger.debug("%s is an edit of %s", candidate.version, candidate.parent)

    def measured(self, candidate: Candidate, rows: Sequence[int]) -> None:
        """Report that a candidate was measured."""
        if not self._terminal:
            logger.info("%s scores %s", candidate.version, candidate.score(rows))

    def round_ended(self, state: SearchState[Any]) -> None:
        """Report the end of a round."""
        if self._terminal and any(not one.rejected for one in state.proposed_in(state.rounds)):
            _print_table(state)
        self._tell(f"round {state.rounds}: {_standing(state)}")
        self._step(state)

    def stopped(self, reason: str) -> None:
        """Report that the search ends before its last round."""
        self._tell(f"stopping: {reason}")

    def ended(self, state: SearchState[Any]) -> None:
        """Report the result of the search, and by how much its score is too high."""
        score = state.candidate(state.best).score()
        measured = sum(bool(one.rewards) for one in state.history)
        if score is None or measured < 2:
            return
        excess = state.excess()
        seed = state.history[0]
        first = seed.score(list(state.candidate(state.best).rewards))
        gain = 0.0 if first is None else score.mean - first.mean
        whole = f", all of its gain of {gain:.2f} over {seed.version}" if excess >= gain > 0 else ""
        self._tell(
            f"validation chose {state.best} among {measured} prompts on {score.n} tasks: its score "
            f"of {score.mean:.3f} is too high by about {excess:.2f}{whole}; only tasks that the "
            "search did not use show the gain (test_dataset)"
        )
        self._report_step(state.rounds, {"val/reward_excess": excess})

    def _tell(self, line: str) -> None:
        # rich's live display replaces sys.stderr, so the line appears above the progress bars.
        if self._terminal:
            print(line, file=sys.stderr)  # noqa: T201
        else:
            logger.info("%s", line)

    def _step(self, state: SearchState[Any]) -> None:
        self._progress.update(state.rounds, _standing(state))
        point, score = state.curve[-1], state.candidate(state.best).score()
        metrics: dict[str, float] = {
            f"{self._name}/rollouts": point.rollouts,
            f"{self._name}/calls": point.calls,
            f"{self._name}/tokens": point.tokens,
            f"{self._name}/cost": point.cost,
        }
        if score is not None:
            metrics |= score.figures("val/reward")
        self._report_step(state.rounds, metrics)


def _standing(state: SearchState[Any]) -> str:
    """Return the state of a search in one line."""
    spent = state.spent
    parts = [
        f"best {state.best} {_score(state.candidate(state.best).score())}",
        f"{spent.rollouts} rollouts",
        f"{spent.calls} calls",
        f"{spent.tokens:,} tokens",
    ]
    if spent.cost:
        parts.append(f"cost {spent.cost:.4f}")
    return ", ".join(parts)


def _score(score: Estimate | None) -> str:
    return "not measured" if score is None else str(score)


def _print_table(state: SearchState[Any]) -> None:
    from rich.table import Table

    proposed = (one.version for one in state.proposed_in(state.rounds))
    shown = list(map(state.candidate, dict.fromkeys([*state.survivors, *proposed])))
    # Scores on different tasks cannot be compared, so all are computed on the shared ones.
    rows = _shared_rows(shown)
    table = Table(
        title=f"round {state.rounds}, scores on the same {len(rows)} validation tasks",
        title_justify="left",
    )
    for heading in _HEADINGS:
        table.add_column(heading)
    for one in shown:
        fate = one.rejected or ("kept" if one.version in state.survivors else "dropped")
        style = "bold" if one.version == state.best else "dim" if fate != "kept" else None
        score = one.score(rows)
        table.add_row(
            one.version,
            one.parent or "",
            f"{score.mean:.3f}" if score else "",
            f"{score.low:.3f} to {score.high:.3f}" if score else "",
            fate,
            style=style,
        )
    error_console().print(table, highlight=False)


def _shared_rows(candidates: Sequence[Candidate]) -> list[int]:
    """Return the validation rows that all measured candidates were measured on."""
    measured = [set(one.rewards) for one in candidates if one.rewards]
    return sorted(set.intersection(*measured)) if measured else []


# -- files -----------------------------------------------------------------------------------------


def write_files(state: SearchState[Any], folder: Path) -> list[Path]:
    """Write ``history.csv``, ``curve.csv`` and, if matplotlib is installed, ``curve.png``.

    Returns:
        The files written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    history, curve, picture = (folder / f for f in ("history.csv", "curve.csv", "curve.png"))
    rows = [_history_row(candidate) for candidate in state.history]
    _write_csv(history, rows)
    _write_csv(curve, [point.model_dump() for point in state.curve])
    if importlib.util.find_spec("matplotlib") is None:
        logger.info("No %s: pip install matplotlib draws the curve", picture.name)
        return [history, curve]
    _draw(state, picture)
    return [history, curve, picture]


def _history_row(candidate: Candidate) -> dict[str, object]:
    score = candidate.score()
    row: dict[str, object] = {
        "version": candidate.version,
        "parent": candidate.parent,
        "round": candidate.round,
        "score": score.mean if score else None,
        "low": score.low if score else None,
        "high": score.high if score else None,
        "n": score.n if score else 0,
        "rejected": candidate.rejected,
        "critique": candidate.critique,
    }
    for name, text in candidate.texts().items():
        # A prompt may have any name, also that of a figure.
        row[f"prompt {name}" if name in row else name] = text
    return row


def _write_csv(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def _draw(state: SearchState[Any], path: Path) -> None:
    # pyplot is not used: it has global state and may open a window.
    figure_module: Any = importlib.import_module("matplotlib.figure")
    points = [point for point in state.curve if point.score is not None]
    figure = figure_module.Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot(
        xlabel="rollouts", ylabel="validation score", title="best prompt so far"
    )
    used = [point.rollouts for point in points]
    axes.fill_between(
        used, [p.low or 0.0 for p in points], [p.high or 0.0 for p in points], alpha=0.2
    )
    axes.plot(used, [p.score for p in points], marker="o")
    for point in points:
        axes.annotate(
            point.best,
            (point.rollouts, point.score or 0.0),
            textcoords="offset points",
            xytext=(4, 6),
        )
    figure.savefig(path, dpi=150)
