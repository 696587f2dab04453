"""``agl eval --record`` and ``agl eval --replay``; agl-train calls these by hooks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from agl_cli_kit import print_json, print_table
from agl_core.algorithm import show_progress
from agl_core.errors import ConfigError
from agl_core.store import LightningStore
from agl_core.types import Resource
from agl_replay.cli import UNUSED_KEYS, live_model_list
from agl_replay.regression import SuiteResult, replay_suite
from agl_replay.report import reward_text
from agl_replay.suites import Suite, read_recordings, read_suite, task_name, write_suite

if TYPE_CHECKING:
    from agl_replay.replaying import ReplayResult

__all__ = ["record_evaluation", "replay_evaluation"]

_SHOWN: Final = 3
"""Changed tasks whose differences are printed."""


async def record_evaluation(
    store: LightningStore,
    rollout_ids: Sequence[str],
    path: Path,
    file_resources: Mapping[str, Resource],
) -> list[str]:
    """Write the rollouts of an evaluation to a suite.

    Args:
        store: The store that has the rollouts.
        rollout_ids: The rollouts, in the order of their tasks.
        path: The suite.
        file_resources: Resources in the train file.

    Returns:
        A line for each rollout that is left out, with the reason.

    Raises:
        ConfigError: All are left out, or the suite cannot be written; one that is there stays as
            it is.
    """
    recordings, left_out = await read_recordings(store, rollout_ids)
    if left_out and not recordings:
        others = f" (and {len(left_out) - 1} more rollouts)" if len(left_out) > 1 else ""
        raise ConfigError(f"{path}: there is no recording to write: {left_out[0]}{others}")
    of_file = {
        name
        for name, resource in file_resources.items()
        if all(one.resources.get(name) == resource for one in recordings)
    }
    write_suite(path, Suite(recordings, frozenset(of_file)))
    return left_out


def replay_evaluation(
    file: Path,
    overrides: Sequence[str],
    path: Path,
    *,
    live_from_divergence: bool,
    live: Sequence[str],
    api_key: str | None,
    as_json: bool,
) -> int:
    """Replay a suite with the agent of a train file, print what changed, and return an exit code.

    Args:
        file: The train file.
        overrides: ``key=value`` each.
        path: The suite.
        live_from_divergence: Whether a task that asks something else continues with live models.
        live: Live models, as ``MODEL=BASE_URL``.
        api_key: Key of the live models.
        as_json: Whether to print JSON.

    Returns:
        1 if a task changed, or, with live models, if a reward became lower; otherwise 0.

    Raises:
        ConfigError: The suite cannot be read or is empty, or the train file has mistakes.
    """
    from agl_train import blame, read_train_file

    suite = read_suite(path)
    if not suite.recordings:
        how = f"record it again with `agl eval {file} --record {path}`"
        raise ConfigError(f"the suite {path} has no recording; {how}")
    with blame(file):
        plan = read_train_file(file, (*overrides, "store=memory"), without=UNUSED_KEYS)
        trainer = plan.build_trainer(with_algorithm=False)
    began = time.monotonic()
    with show_progress("replay", len(suite.recordings)) as progress:
        result = asyncio.run(
            replay_suite(
                plan.agent,
                suite.with_resources(plan.resources or {}),
                on_divergence="live" if live_from_divergence else "stop",
                model_list=live_model_list(live, api_key),
                tracer=trainer.tracer,
                hooks=plan.hooks,
                on_result=progress.update,
            )
        )
    seconds = time.monotonic() - began
    if as_json:
        print_json(_as_json(path, result, seconds))
    else:
        _print(path, result, seconds)
    return 1 if (result.worse if live_from_divergence else result.changed) else 0


def _as_json(path: Path, result: SuiteResult, seconds: float) -> dict[str, Any]:
    from agl_replay.report import result_as_json

    then, now = result.rewards
    return {
        "suite": str(path),
        "tasks": len(result.results),
        "changed": len(result.changed),
        "worse": len(result.worse),
        "reward": {"then": then, "now": now},
        "seconds": seconds,
        "results": [
            {
                "task": one.recording.rollout.input,
                "changed_at": one.changed_at or None,
                "reward_change": one.reward_change,
                **result_as_json(one),
            }
            for one in result.results
        ],
    }


def _print(path: Path, result: SuiteResult, seconds: float) -> None:
    changed, total = result.changed, len(result.results)
    if changed:
        columns = ("task", "then", "now", "change", "differs at")
        print_table(columns, [_row(one) for one in changed])
        for one in changed[:_SHOWN]:
            click.echo("\n" + "\n".join([f"{task_name(one.recording)}:", str(one)]))
        if len(changed) > _SHOWN:
            click.echo(f"\n{len(changed) - _SHOWN} more tasks differ; --json has each difference")
        click.echo()
    then, now = result.rewards
    click.echo(f"mean reward: {then:.4g} then, {now:.4g} now")
    calls = sum(one.answered for one in result.results)
    counts = f"{total - len(changed)} of {total} tasks as recorded in {path}"
    click.echo(f"{counts}, {calls} recorded answers in {seconds:.2f} s")


def _row(result: ReplayResult) -> list[str]:
    return [
        task_name(result.recording),
        reward_text(result.recording.reward),
        reward_text(result.reward),
        f"{result.reward_change:+.4g}",
        result.changed_at,
    ]
