"""The command ``agl compare``."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agl_cli_kit import print_json, print_table
from agl_core.errors import ConfigError
from agl_train.held_out import HeldOut
from agl_train.runs import blame

if TYPE_CHECKING:
    from agl_core.algorithm import BatchOutcome
    from agl_core.store import LightningStore

logger = logging.getLogger(__name__)

_UNUSED = ("algorithm", "train_dataset", "val_dataset", "test_dataset", "hooks")
_SHOWN = 20  # tasks of each kind
_WIDTH = 100  # characters of a task


@click.command(epilog="Example: agl compare train.toml train-eval train-eval-2 --tasks")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("before")
@click.argument("after")
@click.option(
    "--range",
    "reward_range",
    nargs=2,
    type=float,
    metavar="LOW HIGH",
    help="Lowest and highest possible reward; by default trainer.reward_range of FILE, or else the "
    "agent's, or else 0 and 1, or wider if rewards are.",
)
@click.option(
    "--score",
    "scorer",
    help="Compare the scores that agl rescore kept under this name, not rewards.",
)
@click.option("--tasks", "show_tasks", is_flag=True, help="List the tasks that were won and lost.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key of FILE."
)
def compare(
    file: Path,
    before: str,
    after: str,
    reward_range: tuple[float, float] | None,
    scorer: str | None,
    show_tasks: bool,
    as_json: bool,
    overrides: tuple[str, ...],
) -> None:
    """Compare two evaluations in the store of FILE, task by task.

    BEFORE and AFTER are names of runs of agl eval, which prints them. The gain is paired by
    task; tasks that only one of the two has are left out. Nothing runs.
    """
    from agl_core.algorithm import ComparisonOutcome
    from agl_train.file import read_train_file

    with blame(file):
        plan = read_train_file(file, overrides, without=_UNUSED)
        declared = plan.reward_range
        store = plan.build_store_to_read()
    try:
        batches = asyncio.run(_read(store, scorer, before, after))
    finally:
        asyncio.run(store.close())
    if scorer is None:  # the range is that of rewards, and other scores have their own
        batches = [replace(batch, reward_range=declared) for batch in batches]
    outcome = ComparisonOutcome(*batches)
    pairs = outcome.pairs(reward_range=reward_range)
    if not pairs:
        raise ConfigError(f"{before} and {after} have no task in common")
    left_out = len(outcome.before.task_rewards().keys() ^ outcome.after.task_rewards().keys())
    result = HeldOut.of(outcome, reward_range)
    texts = {one.digest: _short(one.rollout.input) for one in outcome.before}
    won = [texts[task] for task, (old, new) in pairs.items() if new > old]
    lost = [texts[task] for task, (old, new) in pairs.items() if new < old]
    if as_json:
        print_json({**result.as_json(), "left_out": left_out, "won_tasks": won, "lost_tasks": lost})
        return
    print_table(["", ""], result.rows(before, after))
    if left_out:
        click.echo(f"{left_out} tasks that only one of the two has are left out")
    if show_tasks:
        for title, tasks in (("lost", lost), ("won", won)):
            for task in tasks[:_SHOWN]:
                click.echo(f"{title}: {task}")
            if len(tasks) > _SHOWN:
                click.echo(f"and {len(tasks) - _SHOWN} more {title}")


async def _read(store: LightningStore, scorer: str | None, *names: str) -> list[BatchOutcome]:
    from agl_algorithm_kit import kept_scores, read_batch, with_scores

    found: list[BatchOutcome] = []
    for name in names:
        batch = await read_batch(store, name)
        if not len(batch):
            raise ConfigError(f"the store has no finished rollouts of a run {name!r}")
        unbegun = sum(not one.started for one in batch)
        if unbegun:
            logger.warning(
                "%d of %d rollouts of %s never began and count as failed: its budget or its time "
                "had ended; agl eval --resume runs them",
                unbegun,
                len(batch),
                name,
            )
        if scorer is not None:
            kept = await kept_scores(store, name)
            if scorer not in kept:
                known = f"it has those of {', '.join(kept)}" if kept else "it has none"
                raise ConfigError(
                    f"the store keeps no scores {scorer!r} of {name}; {known}; agl rescore makes "
                    "them",
                    path="--score",
                )
            batch = with_scores(batch, kept[scorer])
        found.append(batch)
    return found


def _short(task: object) -> str:
    text = " ".join(str(task).split())
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
