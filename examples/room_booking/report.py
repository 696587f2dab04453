"""What the demo prints: lines while it runs, tables at its end, or one JSON object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from agl_core.algorithm import Estimate
from search import Candidate

__all__ = ["Result", "print_interrupted", "print_json", "print_result", "say"]

_HEADINGS = {"version": 7, "from": 4, "score": 5, "95 % interval": 14, "n": 3}
_SHOWN = 12  # prompts in the table
_progress = Console(stderr=True, highlight=False)


@dataclass(frozen=True)
class Result:
    """What a run found.

    Attributes:
        model: Which model answered.
        simulated: Whether it is the bundled simulated one.
        history: The prompts measured on the validation tasks, in order.
        winner: The one chosen.
        resources_id: Where the winner is in the store.
        seed_score: The seed prompt on the held-out tasks.
        winner_score: The winner on the same tasks.
        gain: Mean difference of the two, task by task.
        rollouts: How many rollouts it all took.
        seconds: How long it all took.
    """

    model: str
    simulated: bool
    history: Sequence[Candidate]
    winner: Candidate
    resources_id: str
    seed_score: Estimate
    winner_score: Estimate
    gain: Estimate
    rollouts: int
    seconds: float


def say(line: str) -> None:
    """Print a line of progress, on standard error."""
    _progress.print(line, markup=False, soft_wrap=True)


def print_result(result: Result) -> None:
    """Print the tables and the winner."""
    console = Console(highlight=False)
    mark = "SIMULATED " if result.simulated else ""

    prompts = Table(title="Prompts measured on the validation tasks, best first", expand=True)
    for heading, width in _HEADINGS.items():
        prompts.add_column(heading, min_width=width, no_wrap=True)
    prompts.add_column("added to the parent", ratio=1, overflow="ellipsis", no_wrap=True)
    texts = {candidate.version: candidate.prompt for candidate in result.history}
    for candidate in sorted(result.history, key=lambda one: -one.score.mean)[:_SHOWN]:
        parent = candidate.parent
        prompts.add_row(
            candidate.version,
            parent or "",
            *_cells(candidate.score),
            _added(texts[parent], candidate.prompt) if parent else "(the seed)",
            style="bold" if candidate is result.winner else None,
        )
    console.print(prompts)
    if (left := len(result.history) - _SHOWN) > 0:
        console.print(f"... and {left} more")

    console.print(f"\nThe winner, in the store as {result.resources_id}:", style="bold")
    console.print(result.winner.prompt + "\n", markup=False, soft_wrap=True)

    held_out = Table(title=f"Held-out tasks, {mark}model {result.model}", expand=True)
    for heading in ("prompt", "score", "95 % interval", "n"):
        held_out.add_column(heading, no_wrap=True)
    held_out.add_row("seed", *_cells(result.seed_score))
    held_out.add_row(f"winner {result.winner.version}", *_cells(result.winner_score), style="bold")
    held_out.add_row("gain", *_cells(result.gain))
    console.print(held_out)
    console.print(f"{result.rollouts} rollouts in {result.seconds:.0f} s")


def print_json(result: Result) -> None:
    """Print one JSON object."""
    print(json.dumps({"status": "succeeded", **_plain(result)}))


def print_interrupted(history: Sequence[Candidate], as_json: bool) -> None:
    """Say how far it got; as JSON on standard output if asked to."""
    if as_json:
        print(json.dumps({"status": "interrupted", "history": _plain(history)}))
    say(f"Interrupted after measuring {len(history)} prompts.")
    if history:
        best = max(history, key=lambda one: one.score.mean)
        say(f"The best so far, {best.version}, scores {best.score}:\n{best.prompt}")


def _plain(value: Any) -> Any:
    """Turn results into what JSON knows."""
    if isinstance(value, Estimate):
        return value._asdict()
    if isinstance(value, (Result, Candidate)):
        return {key: _plain(part) for key, part in vars(value).items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def _cells(score: Estimate) -> tuple[str, str, str]:
    return f"{score.mean:.3f}", f"{score.low:.3f} to {score.high:.3f}", str(score.n)


def _added(parent: str, prompt: str) -> str:
    """Return the lines that the parent does not have."""
    known = set(parent.splitlines())
    return " ".join(line for line in prompt.splitlines() if line not in known)
