"""The command ``agl eval``."""

from __future__ import annotations

import asyncio
import math
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from agl_cli_kit import print_json, print_table
from agl_core.errors import ConfigError, RunFailedError
from agl_core.runner import call_replayer, find_replayer
from agl_core.statistics import CONFIDENCE
from agl_train.failures import Failures
from agl_train.runs import (
    INTERRUPTED,
    RunRecord,
    blame,
    choose_run,
    command_again,
    finite,
    listening,
    not_empty,
    price_option,
    report_failure,
    run_options,
    say_store,
    set_up_logging,
    stopped_by_signals,
)
from agl_train.spending import Spending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agl_core.algorithm import BatchOutcome
    from agl_core.store import LightningStore
    from agl_core.trainer import Trainer
    from agl_core.types import Dataset, Resource
    from agl_train.file import TrainPlan

_BATCH: Final = "eval"
"""Name of the batch of an evaluation, as agl_algorithm_kit enqueues it."""


@click.command("eval", epilog="Example: agl eval train.toml --dataset test.jsonl --json")
@run_options
@click.option(
    "--dataset",
    help="Dataset to run over, written as in FILE but relative to the working directory; "
    "by default FILE's val_dataset, or else its train_dataset.",
)
@click.option(
    "--resources", metavar="ID", callback=not_empty, help="Snapshot in the store to run with."
)
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Rollouts of each task. The score is then avg@k; pass@k is printed, too.",
)
@click.option(
    "--pass-at",
    "threshold",
    type=float,
    default=1.0,
    show_default=True,
    help="Reward from which on an attempt passes.",
)
@click.option(
    "--run",
    "name",
    metavar="NAME",
    callback=not_empty,
    help="Name of the evaluation, for agl compare; by default that of FILE with -eval.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with an evaluation that was interrupted, or that its budget or time ended. Of one "
    "that has nothing more to do, print the score again.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help="Tokens after which no further rollouts begin. The score is of those that began.",
)
@click.option(
    "--max-cost", type=click.FloatRange(min=0), help="The same for the cost; needs --price."
)
@price_option
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
    attempts: int,
    threshold: float,
    name: str | None,
    resume: bool,
    max_tokens: int | None,
    max_cost: float | None,
    price: tuple[float, float] | None,
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
        plan = _Evaluation(
            dataset,
            resources,
            attempts,
            threshold,
            name,
            resume,
            Spending(max_tokens, max_cost, price),
            timeout,
        )
        return _score(file, overrides, as_json, plan, suite)
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


@dataclass(frozen=True)
class _Evaluation:
    """What to run; fields as the options of the command."""

    dataset: str | None
    resources: str | None
    attempts: int
    threshold: float
    name: str | None
    resume: bool
    spending: Spending
    timeout: float | None


def _score(
    file: Path,
    overrides: tuple[str, ...],
    as_json: bool,
    wanted: _Evaluation,
    suite: Path | None,
) -> int:
    """Run the agent over the dataset; return the exit code."""
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
        if wanted.dataset is not None:
            tasks = load_dataset(wanted.dataset, Path.cwd(), path="--dataset")
        if tasks is None:
            raise ConfigError(f"{file}: has no val_dataset; add one or give --dataset")
        with blame(file):
            set_up_logging(plan)
            trainer = plan.build_trainer(with_algorithm=False)
        say_store(trainer, plan, as_json)
    try:
        with report_failure(record, as_json):
            read, snapshot = _read_finished(trainer.store, plan, record, wanted)
            outcome = read
            if outcome is None:
                wanted = replace(wanted, resources=wanted.resources or snapshot)
                outcome = _run(trainer, plan, tasks, record, overrides, wanted)
            if outcome is None:
                return INTERRUPTED
            if read is not None:
                wanted = replace(wanted, attempts=max(1, read.attempts))
                click.echo(f"{record.name} is finished: this is its score, nothing ran", err=True)
            failed = [one.rollout for one in outcome if one.rollout.status == "failed"]
            failures = asyncio.run(Failures.read(trainer.store, outcome.statuses(), failed))
        # The score is printed first: what was measured is not lost if it cannot be recorded.
        _print(record, outcome, failures, wanted, as_json)
        if suite is not None:
            ids = [one.rollout.rollout_id for one in outcome]
            left_out = asyncio.run(_record(trainer.store, ids, suite, plan.resources or {}))
            for line in left_out:
                click.echo(f"left out of {suite}: {line}", err=True)
            count = f"{len(ids) - len(left_out)} of {len(ids)} rollouts"
            click.echo(f"{count} recorded in {suite}", err=True)
    finally:
        asyncio.run(trainer.store.close())
    failures.tell()
    if failures.verdict:
        raise click.ClickException(failures.verdict)
    return 0


def _run(
    trainer: Trainer,
    plan: TrainPlan,
    tasks: Dataset[Any],
    record: RunRecord,
    overrides: Sequence[str],
    wanted: _Evaluation,
) -> BatchOutcome | None:
    """Run the agent over the tasks; return what was found, None after Ctrl+C."""
    with listening(record), stopped_by_signals():
        try:
            return trainer.evaluate(
                plan.agent,
                tasks,
                resources=wanted.resources,
                attempts=wanted.attempts,
                timeout=wanted.timeout,
                run=record.name,
                is_enough=wanted.spending.add,
            )
        except KeyboardInterrupt:
            again = command_again("eval", record, overrides, "--run", record.name, "--resume")
            click.echo(f"interrupted; go on with: {again} and the same options", err=True)
            return None
        except RunFailedError as error:
            if error.outcome is None:  # another process of the run failed
                raise
            return error.outcome  # printed with the causes


def _read_finished(
    store: LightningStore, plan: TrainPlan, record: RunRecord, wanted: _Evaluation
) -> tuple[BatchOutcome | None, str | None]:
    """Name the evaluation; return what it found if it is finished and has nothing more to do.

    If the budget of this call allows more, the run is opened again: the evaluation enqueues the
    rollouts that never began, since the budget or the time had ended.

    Returns:
        The outcome, or None if there is something to run; and the snapshot that a finished one ran
        with, which it goes on with.
    """
    from agl_algorithm_kit import StoredRun, read_batch, stored_runs

    async def read() -> tuple[BatchOutcome | None, str | None]:
        runs = await stored_runs(store)
        record.name = choose_run(runs, f"{Path(record.file).stem}-eval", wanted.name, wanted.resume)
        if record.name not in runs or not runs[record.name].finished:
            return None, None
        batch = await read_batch(store, record.name, _BATCH)
        if not len(batch):
            raise ConfigError(
                f"the store has no finished rollouts of an evaluation {record.name!r}; give "
                "another name",
                path="--resume",
            )
        batch = replace(batch, reward_range=plan.reward_range)
        begun = replace(batch, outcomes=[one for one in batch if one.started])
        if len(begun) == len(batch) or copy(wanted.spending).add(begun):
            wanted.spending.add(begun)
            return begun if wanted.spending.is_spent else batch, batch.resources_id
        run = await StoredRun.open(store, record.name)
        await run.reopen()
        await run.save(run.state)  # as one that is not finished
        await run.close()
        return None, batch.resources_id

    return asyncio.run(read())


def _print(
    record: RunRecord,
    outcome: BatchOutcome,
    failures: Failures,
    wanted: _Evaluation,
    as_json: bool,
) -> None:
    score, spending = outcome.score(), wanted.spending
    passing = {
        k: outcome.pass_at(k, wanted.threshold)
        for k in (1, 2, 4, 8, 16, 32, 64, outcome.attempts)
        if k <= outcome.attempts and wanted.attempts > 1
    }
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
                    "attempts": wanted.attempts,
                    "pass_at": {str(k): each._asdict() for k, each in passing.items()},
                    **spending.as_json(),
                    "budget_spent": spending.is_spent,
                    **outcome.statuses(),
                },
                "failures": failures.as_json(),
                "resources_id": outcome.resources_id,
            }
        )
        return
    rows = [
        ["evaluation", record.name],
        [
            "score" if wanted.attempts == 1 else f"avg@{wanted.attempts}",
            f"{score.mean:.3f}" if is_known else "no task finished",
        ],
        ["95 % interval", f"{score.low:.3f} to {score.high:.3f}" if is_known else "none"],
        ["tasks", str(score.n)],
        *([f"pass@{k}", str(each)] for k, each in passing.items()),
        ["without a reward", str(missing)],
        *([] if failure is None else [["a failure counts", f"{failure:.3f}"]]),
        *([["budget", f"spent: only {len(outcome)} rollouts"]] if spending.is_spent else []),
        *failures.rows(),
        ["resources", outcome.resources_id or "none"],
        ["seconds", f"{record.seconds:.1f}"],
    ]
    print_table(["", ""], rows)
