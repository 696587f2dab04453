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
    from agl_judge.scorer_agreement import Agreement


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
    "--name",
    help="Name under which the store keeps the scores, in place of earlier ones of this name; by "
    "default that of the function.",
)
@click.option(
    "--resume", is_flag=True, help="Take over the scores of a call that Ctrl+C interrupted."
)
@click.option("--dry-run", is_flag=True, help="Keep nothing in the store.")
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
    name: str | None,
    resume: bool,
    dry_run: bool,
    output: Path | None,
    as_json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Apply another scorer to the rollouts of RUN in the store of FILE.

    No agent runs, and the rollouts keep their rewards: the scores are kept beside them, for agl
    compare --score and for later scorers. Prints the new score, its difference from the rewards,
    paired by task, and how far it agrees with the rewards and with earlier scorers.
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
        keep_as = None if dry_run else name or reference.rpartition(":")[2]
        score: Any = scorer
        result = asyncio.run(
            score_again(
                store,
                run,
                score,
                threshold=threshold,
                keep_as=keep_as,
                resume=resume,
                reward_range=plan.reward_range,
            )
        )
    finally:
        asyncio.run(store.close())
    if output is not None:
        output.write_text("".join(f"{json.dumps(row)}\n" for row in _rows(result)))
    _print(result, keep_as, as_json)


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


def _print(result: Rescored, kept_as: str | None, as_json: bool) -> None:
    missing = sum(score is None for score in result.scores)
    own = result.agreement
    # A scorer is compared with the others, and not with what it said before.
    others = {name: found for name, found in result.others.items() if name != kept_as}
    if as_json:
        print_json(
            {
                "score": result.score._asdict(),
                "change": result.change._asdict(),
                "rollouts": len(result.scores),
                "without_score": missing,
                "agreement": None if own is None else _as_json(own),
                "agreement_with": {name: _as_json(found) for name, found in others.items()},
                "kept_as": kept_as,
            }
        )
        return
    rows = [
        ["score", str(result.score)],
        ["change", str(result.change)],
        ["rollouts", str(len(result.scores))],
        ["without a score", str(missing)],
        ["agreement", "no rewards to compare with" if own is None else str(own)],
        *([f"  with {name}", str(found)] for name, found in others.items()),
        *([] if kept_as is None else [["kept as", kept_as]]),
    ]
    print_table(["", ""], rows)


def _as_json(found: Agreement) -> dict[str, Any]:
    return {
        "n": found.n,
        "accuracy": found.accuracy._asdict(),
        "kappa": found.kappa,
        "error": found.error,
        "ordered": found.ordered,
    }
