"""The command ``agl rescore``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl_cli_kit import print_json, print_table
from agl_core.errors import ConfigError

if TYPE_CHECKING:
    from agl_judge.rescoring import Rescored


_UNUSED = ("algorithm", "train_dataset", "val_dataset", "test_dataset", "hooks")


@click.command(
    epilog="Example: agl rescore train.toml train-eval --scorer scorers.py:exact --output new.jsonl"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("run")
@click.option(
    "--scorer",
    "reference",
    required=True,
    metavar="FILE.py:NAME",
    help="A function of a task and the spans of a rollout, async or not, that returns a number, or "
    "None if it cannot score; relative to FILE.",
)
@click.option(
    "--threshold",
    type=float,
    default=0.5,
    show_default=True,
    help="Scores from it on are good, for the agreement.",
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a line of JSON per rollout: its id, its reward, its new score.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key of FILE."
)
def rescore(
    file: Path,
    run: str,
    reference: str,
    threshold: float,
    output: Path | None,
    as_json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Apply another scorer to the rollouts of RUN in the store of FILE.

    No agent runs, and the rollouts keep their rewards. Prints the new score, its difference from
    the rewards, paired by task, and how far scorer and rewards agree.
    """
    from agl_judge.rescoring import rescore as score_again
    from agl_train import blame, import_reference, read_train_file

    with blame(file):
        plan = read_train_file(file, overrides, without=_UNUSED)
        store = plan.build_trainer(with_algorithm=False).store
    try:
        scorer: Any = import_reference(reference, file.absolute().parent, path="--scorer")
        if not callable(scorer):
            raise ConfigError(f"{reference} is not a function", path="--scorer")
        score: Any = scorer
        result = asyncio.run(score_again(store, run, score, threshold=threshold))
    finally:
        asyncio.run(store.close())
    if output is not None:
        output.write_text("".join(f"{json.dumps(row)}\n" for row in _rows(result)))
    _print(result, as_json)


def _rows(result: Rescored) -> list[dict[str, Any]]:
    return [
        {
            "rollout_id": outcome.rollout.rollout_id,
            "input": outcome.rollout.input,
            "reward": outcome.reward,
            "score": score,
        }
        for outcome, score in zip(result.outcomes, result.scores, strict=True)
    ]


def _print(result: Rescored, as_json: bool) -> None:
    found, missing = result.agreement, sum(score is None for score in result.scores)
    if as_json:
        print_json(
            {
                "score": result.score._asdict(),
                "change": result.change._asdict(),
                "rollouts": len(result.scores),
                "without_score": missing,
                "agreement": None
                if found is None
                else {
                    "n": found.n,
                    "accuracy": found.accuracy._asdict(),
                    "kappa": found.kappa,
                    "error": found.error,
                    "ordered": found.ordered,
                },
            }
        )
        return
    rows = [
        ["score", str(result.score)],
        ["change", str(result.change)],
        ["rollouts", str(len(result.scores))],
        ["without a score", str(missing)],
        ["agreement", "no rewards to compare with" if found is None else str(found)],
    ]
    print_table(["", ""], rows)
