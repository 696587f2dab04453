"""The command ``agl eval``."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agl_core.cli import print_json, print_table
from agl_core.errors import ConfigError, RunFailedError
from agl_core.runner import call_replayer, find_replayer
from agl_core.statistics import CONFIDENCE
from agl_train.failures import Failures
from agl_train.runs import (
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agl_core.algorithm import BatchOutcome
    from agl_core.store import LightningStore
    from agl_core.types import Resource


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
    help="Seconds for the whole dataset; unfinished tasks count as failures.",
)
@click.option(
    "--record",
    "suite",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="SUITE",
    help="Write the rollouts to a file for --replay; needs agl-replay.",
)
@click.option(
    "--replay",
    "replayed",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="SUITE",
    help="Run the agent on the rollouts in a file of --record: the recorded answers replace the "
    "model, and tasks that differ are listed with the place; needs agl-replay.",
)
@click.option(
    "--live-from-divergence",
    is_flag=True,
    help="With --replay: a task that differs goes on with the live model, to show its reward.",
)
@click.option(
    "--live",
    multiple=True,
    metavar="MODEL=BASE_URL",
    help="With --live-from-divergence: a live model and the base URL of its server; repeatable. "
    "By default the models of the recorded resources.",
)
@click.option(
    "--api-key",
    envvar="AGL_PROXY_API_KEY",
    show_envvar=True,
    help="API key of the servers of --live.",
)
def evaluate(
    file: Path,
    overrides: tuple[str, ...],
    as_json: bool,
    dataset: str | None,
    resources: str | None,
    timeout: float | None,
    suite: Path | None,
    replayed: Path | None,
    live_from_divergence: bool,
    live: tuple[str, ...],
    api_key: str | None,
) -> int:
    """Score the agent that FILE describes over a dataset, updating nothing.

    The score is the mean reward over the tasks with its 95 % interval. A rollout that failed, did
    not end or got no reward counts the lower end of trainer.reward_range, or else 0 or the lowest
    reward, whichever is lower. Without --resources the agent runs with those in FILE if they were
    edited since the last training, else with the latest in the store.

    With --replay, exits with 1 if a task differs from its recording; with --live-from-divergence,
    if a reward is lower than the recorded one.
    """
    if replayed is None:
        if live_from_divergence or live:
            raise click.UsageError("--live-from-divergence and --live need --replay")
        _score(file, overrides, as_json, dataset, resources, timeout, suite)
        return 0
    if suite is not None or not (dataset is resources is timeout is None):
        others = "--record, --dataset, --resources and --timeout"
        raise click.UsageError(f"--replay excludes {others}: the suite has the tasks")
    if live and not live_from_divergence:
        raise click.UsageError("--live needs --live-from-divergence")
    return call_replayer(
        "replay_suite",
        file=file,
        overrides=overrides,
        path=replayed,
        live_from_divergence=live_from_divergence,
        live=live,
        api_key=api_key,
        as_json=as_json,
    )


async def _record(
    store: LightningStore, rollout_ids: Sequence[str], path: Path, given: Mapping[str, Resource]
) -> list[str]:
    return await call_replayer(
        "record_suite", store=store, rollout_ids=rollout_ids, path=path, file_resources=given
    )


def _score(
    file: Path,
    overrides: tuple[str, ...],
    as_json: bool,
    dataset: str | None,
    resources: str | None,
    timeout: float | None,
    suite: Path | None,
) -> None:
    """Run the agent over the dataset; parameters as the options of the command."""
    from agl_train.datasets import load_dataset
    from agl_train.file import read_train_file

    # A missing package is reported before the run, not after it.
    if suite is not None:
        find_replayer("record_suite")
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
            with listening(record), stopped_by_signals():
                try:
                    outcome = trainer.evaluate(
                        plan.agent, tasks, resources=resources, timeout=timeout
                    )
                except RunFailedError as error:
                    if error.outcome is None:  # another process of the run failed
                        raise
                    outcome: BatchOutcome = error.outcome  # printed below, with the causes
            failed = [one.rollout for one in outcome if one.rollout.status == "failed"]
            failures = asyncio.run(Failures.read(trainer.store, outcome.statuses(), failed))
            if suite is not None:
                ids = [one.rollout.rollout_id for one in outcome]
                given = plan.resources or {}
                left_out = asyncio.run(_record(trainer.store, ids, suite, given))
                for line in left_out:
                    click.echo(f"left out of {suite}: {line}", err=True)
                count = f"{len(ids) - len(left_out)} of {len(ids)} rollouts"
                click.echo(f"{count} recorded in {suite}", err=True)
        finally:
            asyncio.run(trainer.store.close())
    _print(record, outcome, failures, as_json)
    failures.tell()
    if failures.verdict:
        raise click.ClickException(failures.verdict)


def _print(record: RunRecord, outcome: BatchOutcome, failures: Failures, as_json: bool) -> None:
    score = outcome.score()
    missing = sum(one.reward is None for one in outcome)
    failed = any(one.earned is None for one in outcome)
    is_known = math.isfinite(score.mean)
    failure = outcome.scale.ends[0] if failed and is_known else None
    if as_json:
        print_json(
            {
                "run": record.as_json(),
                "status": "failed" if failures.verdict else "succeeded",
                "metrics": {
                    "mean": finite(score.mean),
                    "low": finite(score.low),
                    "high": finite(score.high),
                    "confidence": CONFIDENCE,
                    "tasks": score.n,
                    "rollouts": len(outcome),
                    "without_reward": missing,
                    **outcome.statuses(),
                },
                "failures": failures.as_json(),
                "resources_id": outcome.resources_id,
            }
        )
        return
    rows = [
        ["score", f"{score.mean:.3f}" if is_known else "no task finished"],
        ["95 % interval", f"{score.low:.3f} to {score.high:.3f}" if is_known else "none"],
        ["tasks", str(score.n)],
        ["without a reward", str(missing)],
        *([] if failure is None else [["a failure counts", f"{failure:.3f}"]]),
        *failures.rows(),
        ["resources", outcome.resources_id or "none"],
        ["seconds", f"{record.seconds:.1f}"],
    ]
    print_table(["", ""], rows)
