"""Prints the demo's output: lines of progress, tables at the end, or one JSON object."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from agl_cli_kit import error_console
from agl_core.statistics import Estimate, Gain

if TYPE_CHECKING:
    from agl_algo_apo import Candidate

__all__ = ["Result", "print_interrupted", "print_json", "print_result", "say", "show_search"]

_HEADINGS = {"version": 7, "from": 4, "score": 5, "95 % interval": 14, "n": 3}
_SHOWN = 12  # prompts in the table


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes:
        model: Name of the model.
        simulated: Whether it is the bundled simulated model.
        run: Name of the run.
        store: File of the store.
        history: Every prompt proposed, in order; most were measured on the validation tasks.
        found: The prompt that validation chose.
        excess: By how much its validation score is too high, about.
        resources_id: Id of its resources in the store.
        seed_score: Score of the seed prompt on the held-out tasks.
        found_score: Score of the found prompt on the same tasks.
        gain: Mean difference of the two scores, task by task.
        rollouts: Number of rollouts of the search.
        calls: Number of calls of critic and editor.
        seconds: Duration since the start or the last resumption.
    """

    model: str
    simulated: bool
    run: str
    store: str
    history: Sequence[Candidate]
    found: Candidate
    excess: float
    resources_id: str
    seed_score: Estimate
    found_score: Estimate
    gain: Gain
    rollouts: int
    calls: int
    seconds: float

    @property
    def verdict(self) -> str:
        """What the held-out tasks say about the found prompt."""
        version, gain = self.found.version, self.gain
        if gain.is_shown:
            return f"{version} is better than the seed: the whole interval of the gain is above 0."
        return (
            f"Not shown: the gain may be as low as {gain.low:+.3f}, so these {gain.n} tasks are no "
            f"reason to replace the seed by {version}."
        )


def say(line: str) -> None:
    """Print a line of progress, on standard error."""
    error_console().print(line, markup=False, highlight=False, soft_wrap=True)


def show_search() -> None:
    """Print the search's rounds, which it logs if no terminal shows its table of them."""

    class Say(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    logger = logging.getLogger("agl_prompt_search")
    logger.setLevel(logging.INFO)
    logger.addHandler(Say())


def print_result(result: Result) -> None:
    """Print the tables, the found prompt, and what the held-out tasks say about it."""
    console = Console(highlight=False)
    mark = "SIMULATED " if result.simulated else ""

    texts = {candidate.version: candidate.prompt for candidate in result.history}
    measured = [(one, score) for one in result.history if (score := one.score())]
    tasks = len(result.found.rewards)
    whole = [pair for pair in measured if pair[1].n == tasks]
    title = f"Prompts measured on all {tasks} validation tasks, best first"
    prompts = Table(title=title, expand=True)
    for heading, width in _HEADINGS.items():
        prompts.add_column(heading, min_width=width, no_wrap=True)
    prompts.add_column("added to the parent", ratio=1, overflow="ellipsis", no_wrap=True)
    for candidate, score in sorted(whole, key=lambda pair: -pair[1].mean)[:_SHOWN]:
        parent = candidate.parent
        prompts.add_row(
            candidate.version,
            parent or "",
            *_cells(score),
            _added(texts[parent], candidate.prompt) if parent else "(the seed)",
            style="bold" if candidate is result.found else None,
        )
    console.print(prompts)
    part, rejected = len(measured) - len(whole), len(result.history) - len(measured)
    console.print(
        f"{part} more were measured on a part of the tasks, {rejected} rejected before that"
    )
    console.print(
        f"The score of {result.found.version} is too high by about {result.excess:.2f}: it is the "
        f"best of {len(measured)} on these tasks."
    )

    where = f"in {result.store} as {result.resources_id}"
    console.print(f"\n{result.found.version}, {where}:", style="bold")
    console.print(result.found.prompt + "\n", markup=False, soft_wrap=True)

    console.print(
        f"{result.rollouts} rollouts and {result.calls} calls of critic and editor, "
        f"{result.seconds:.0f} s\n"
    )

    held_out = Table(title=f"Held-out tasks, {mark}model {result.model}", expand=True)
    for heading in ("prompt", "score", "95 % interval", "n"):
        held_out.add_column(heading, no_wrap=True)
    held_out.add_row("seed", *_cells(result.seed_score))
    held_out.add_row(f"found {result.found.version}", *_cells(result.found_score))
    held_out.add_row("gain", *_cells(result.gain))
    console.print(held_out)
    console.print(result.verdict, style="bold")


def print_json(result: Result) -> None:
    """Print one JSON object."""
    shown = {"gain_is_shown": result.gain.is_shown, "verdict": result.verdict}
    print(json.dumps({"status": "succeeded", **_plain(result), **shown}))


def print_interrupted(history: Sequence[Candidate], resume: str, as_json: bool) -> None:
    """Print the progress so far and the command that resumes the run.

    Args:
        history: The prompts proposed so far.
        resume: The command that resumes the run.
        as_json: Whether to print JSON, on standard output.
    """
    if as_json:
        print(json.dumps({"status": "interrupted", "history": _plain(history), "resume": resume}))
    measured = [(one, score) for one in history if (score := one.score())]
    say(f"Interrupted after measuring {len(measured)} prompts.")
    if measured:
        best, score = max(measured, key=lambda pair: pair[1].mean)
        say(f"The best so far, {best.version}, scores {score}:\n{best.prompt}")
    say(f"Nothing is lost. Go on with: {resume}")


def _plain(value: Any) -> Any:
    """Convert results to JSON values."""
    if isinstance(value, Estimate):
        return value._asdict()
    if isinstance(value, Result):
        return {key: _plain(part) for key, part in vars(value).items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if hasattr(value, "model_dump"):
        return {
            **value.model_dump(mode="json", exclude={"rewards"}),
            "score": _plain(value.score()),
        }
    return value


def _cells(score: Estimate) -> tuple[str, str, str]:
    return f"{score.mean:.3f}", f"{score.low:.3f} to {score.high:.3f}", str(score.n)


def _added(parent: str, prompt: str) -> str:
    """Return the lines that the parent does not have."""
    known = set(parent.splitlines())
    return " ".join(line for line in prompt.splitlines() if line not in known)
