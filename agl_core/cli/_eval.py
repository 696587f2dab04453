"""The command ``agl eval``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agl_core.cli._failures import Failures
from agl_core.cli._output import print_json, print_table
from agl_core.cli._runs import (
    RunRecord,
    blame,
    finite,
    listening,
    report_failure,
    run_options,
    say_store,
    set_up_logging,
    stopped_by_signals,
)
from agl_core.errors import ConfigError

if TYPE_CHECKING:
    from agl_core.algorithm._batch import BatchOutcome

CONFIDENCE = 0.95


@click.command("eval", epilog="Example: agl eval train.toml --dataset test.jsonl --json")
@run_options
@click.option(
    "--dataset",
    help="Dataset to run over, written as in FILE but relative to the working directory; "
    "by default FILE's val_dataset, or else its train_dataset.",
)
@click.option("--resources", metavar="ID", help="Snapshot in the store to run with.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds for the whole dataset; unfinished tasks count as 0.",
)
def evaluate(
    file: Path,
    overrides: tuple[str, ...],
    as_json: bool,
    dataset: str | None,
    resources: str | None,
    timeout: float | None,
) -> None:
    """Score the agent that FILE describes over a dataset, updating nothing.

    The score is the mean reward with its 95 % interval; a task without a reward counts as 0.
    Without --resources the agent runs with the latest in the store, or else with those in FILE.
    """
    from agl_core.trainer._datasets import load_dataset
    from agl_core.trainer._file import read_train_file

    record = RunRecord(str(file))
    with report_failure(record, as_json):
        with blame(file):
            plan = read_train_file(file, overrides)
            record.parts = plan.describe()
            tasks = plan.train_dataset if plan.val_dataset is None else plan.val_dataset
        if dataset is not None:
            tasks = load_dataset(dataset, Path.cwd(), path="--dataset")
        if tasks is None:
            raise ConfigError(f"{file}: has no val_dataset; add one or give --dataset")
        with blame(file):
            set_up_logging(plan)
            trainer = plan.build_trainer(with_algorithm=False)
        say_store(trainer, plan, as_json)
        try:
            latest = asyncio.run(trainer.store.get_latest_resources())
            if latest is None and trainer.initial_resources is None:
                trainer.initial_resources = {}  # neither file nor store has any: none are needed
            with listening(record), stopped_by_signals():
                outcome = trainer.evaluate(plan.agent, tasks, resources=resources, timeout=timeout)
            failed = [one.rollout for one in outcome if one.rollout.status == "failed"]
            failures = asyncio.run(Failures.read(trainer.store, outcome.statuses(), failed))
        finally:
            asyncio.run(trainer.store.close())
    _print(record, outcome, failures, as_json)
    failures.tell()
    if failures.verdict:
        raise click.ClickException(failures.verdict)


def _print(record: RunRecord, outcome: BatchOutcome, failures: Failures, as_json: bool) -> None:
    score = outcome.score(confidence=CONFIDENCE)
    missing = sum(one.reward is None for one in outcome)
    if as_json:
        print_json(
            {
                "run": record.as_json(),
                "status": "failed" if failures.verdict else "succeeded",
                "metrics": {
                    "mean": score.mean,
                    "low": finite(score.low),
                    "high": finite(score.high),
                    "confidence": CONFIDENCE,
                    "tasks": len(outcome),
                    "without_reward": missing,
                    **outcome.statuses(),
                },
                "failures": failures.as_json(),
                "resources_id": outcome.resources_id,
            }
        )
        return
    rows = [
        ["score", f"{score.mean:.3f}"],
        ["95 % interval", f"{score.low:.3f} to {score.high:.3f}"],
        ["tasks", str(len(outcome))],
        ["without a reward", str(missing)],
        *failures.rows(),
        ["resources", outcome.resources_id or "none"],
        ["seconds", f"{record.seconds:.1f}"],
    ]
    print_table(["", ""], rows)
