"""The command ``agl train``."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agl_cli_kit import print_json, print_table
from agl_core.errors import AglError, ConfigError, RunFailedError, error_message
from agl_core.types import ProxyLLM
from agl_train.curves import curve
from agl_train.failures import Failures, failed_rollouts, retried_attempts
from agl_train.held_out import HeldOut, check_held_out, measure_held_out
from agl_train.runs import (
    INTERRUPTED,
    RunRecord,
    blame,
    choose_run,
    command_again,
    error_json,
    listening,
    not_empty,
    report_failure,
    run_options,
    say_store,
    set_up_logging,
    stopped_by_signals,
)

if TYPE_CHECKING:
    from agl_core.trainer import Trainer
    from agl_core.types import ResourcesUpdate
    from agl_train.file import TrainPlan


@click.command(epilog="Example: agl train train.toml --set trainer.n_runners=8 --json")
@run_options
@click.option(
    "--run",
    "name",
    metavar="NAME",
    callback=not_empty,
    help="Name of the run; by default that of FILE, with a number if there is one already.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Resume the run of --run, or else the last run of FILE.",
)
@click.option("--check", is_flag=True, help="Check everything in FILE and run nothing.")
def train(
    file: Path,
    overrides: tuple[str, ...],
    as_json: bool,
    name: str | None,
    resume: bool,
    check: bool,
) -> int:
    """Train the agent that FILE (TOML, YAML or JSON) describes.

    Ctrl+C, SIGTERM and SIGHUP stop the run cleanly. --resume continues a run that was stopped or
    that crashed. The best resources are the latest in the store.
    """
    from agl_train.file import NO_ALGORITHM, read_train_file

    record = RunRecord(str(file))
    if check:
        return _check(record, overrides, as_json)
    with report_failure(record, as_json):
        with blame(file):
            plan = read_train_file(file, overrides)
            record.parts = plan.describe()
            if plan.content.algorithm is None:
                raise ConfigError(NO_ALGORITHM, path="algorithm")
            check_held_out(plan)
            set_up_logging(plan)
            trainer = plan.build_trainer()
        say_store(trainer, plan, as_json)
        done = _fit(trainer, plan, record, overrides, name, resume)
    # What ended the algorithm counts, too: rollouts may have succeeded before.
    raised = record.error if isinstance(record.error, RunFailedError) else None
    verdict = done.failures.verdict or (error_message(raised) if raised else "")
    status = "failed" if verdict else "succeeded"
    if done.interrupted:
        status = "interrupted"
    if as_json:
        print_json(
            {
                "run": record.as_json(),
                "status": status,
                "metrics": {**record.metrics, **done.counts, "steps": record.steps},
                "failures": done.failures.as_json(),
                **({"error": error_json(raised)} if raised else {}),
                "retried": done.retried,
                "best_resources": _public(done.latest) if done.latest else None,
                "test": done.tested and done.tested.as_json(),
                **({"test_error": done.test_failure} if done.test_failure else {}),
            }
        )
    else:
        _print_run(record, status, done)
        if plan.test_dataset is not None and status == "succeeded":
            _print_test(plan.test_dataset, done)
        if plan.store_name != "memory":
            _print_next(record, status, overrides, trainer, done)
    done.failures.tell()
    if status == "failed":
        raise click.ClickException(verdict) from raised
    if done.test_failure and not done.test_interrupted:
        raise click.ClickException(f"the run is finished, its test failed: {done.test_failure}")
    return INTERRUPTED if done.interrupted or done.test_interrupted else 0


@dataclass
class _Trained:
    """What a training found.

    Attributes:
        counts: Rollouts of the run, in total and by final status.
        latest: Its best resources.
        failures: The rollouts that failed, and why.
        retried: Attempts that later ones replaced, by status.
        interrupted: Whether Ctrl+C ended the training.
        tested: The test on held-out tasks; None if there was none.
        test_failure: Why the test has no result; empty if it has one, or was not run.
        test_interrupted: Whether Ctrl+C ended the test.
    """

    counts: dict[str, int]
    latest: ResourcesUpdate | None
    failures: Failures
    retried: dict[str, int]
    interrupted: bool
    tested: HeldOut | None = None
    test_failure: str = ""
    test_interrupted: bool = False

    def test(self, trainer: Trainer, plan: TrainPlan, earlier: ResourcesUpdate | None) -> None:
        """Measure the result on the test tasks; what ends that does not undo the training."""
        if plan.test_dataset is None or self.latest is None:
            return
        try:
            with stopped_by_signals():
                self.tested = measure_held_out(trainer, plan, earlier, self.latest)
        except KeyboardInterrupt:
            self.test_failure, self.test_interrupted = "it was interrupted", True
        except AglError as error:
            self.test_failure = error_message(error)


def _fit(
    trainer: Trainer,
    plan: TrainPlan,
    record: RunRecord,
    overrides: Sequence[str],
    name: str | None,
    resume: bool,
) -> _Trained:
    """Train, and test the result; return what was found."""
    from agl_algorithm_kit import stored_runs

    store = trainer.store

    async def result() -> ResourcesUpdate | None:
        checkpoint = (await stored_runs(store))[trainer.run]
        if resume:
            record.metrics = {**checkpoint.metrics, **record.metrics}
        # The run's own result: the latest resources may be those of another run.
        best = checkpoint.resources_id
        return await (store.get_resources_by_id(best) if best else store.get_latest_resources())

    async def look_back() -> tuple[dict[str, int], ResourcesUpdate | None]:
        """Return how many rollouts are not of this run, and the store's latest resources."""
        counts = await record.count(store)
        if resume:
            own = await record.count_run(store, trainer.run)
            counts = {key: counts[key] - own[key] for key in counts}
        return counts, await store.get_latest_resources()

    async def look() -> tuple[dict[str, int], Failures, dict[str, int]]:
        """Return the counts of the run, its failures, and its retried attempts by status."""
        after = await record.count(store)
        counts = {key: after[key] - others[key] for key in after}
        failed = await failed_rollouts(store, counts["failed"], runs)
        retried = await retried_attempts(store, counts["rollouts"], runs)
        return counts, await Failures.read(store, counts, failed), retried

    try:
        trainer.run = record.name = choose_run(
            asyncio.run(stored_runs(store)), Path(record.file).stem, name, resume
        )
        trainer.resume_command = command_again(
            "train", record, overrides, "--run", trainer.run, "--resume"
        )
        runs = {trainer.run, None}  # a batch may carry no run's name
        others, earlier = asyncio.run(look_back())
        if earlier is None and trainer.initial_resources is None:
            trainer.initial_resources = {}  # neither file nor store has any: none are needed
        # Below, the failures of the whole run are read for the summary; what an algorithm raised
        # is in the record.
        try:
            with listening(record), stopped_by_signals(), suppress(RunFailedError):
                trainer.fit(plan.agent, plan.train_dataset, val_dataset=plan.val_dataset)
        except Exception:
            # An algorithm that stumbles over rollouts that all failed does not know why they did.
            with suppress(AglError):
                _, failures, _ = asyncio.run(look())
                if failures.verdict:
                    click.echo(failures.verdict, err=True)
            raise
        interrupted = trainer.interrupted
        counts, failures, retried = asyncio.run(look())
        done = _Trained(counts, asyncio.run(result()), failures, retried, interrupted)
        if record.error is None and not interrupted and not failures.verdict:
            done.test(trainer, plan, earlier)
        return done
    finally:
        asyncio.run(store.close())


def _public(latest: ResourcesUpdate) -> dict[str, Any]:
    """Return a snapshot without its API keys, because output ends up in logs."""
    snapshot = latest.model_dump(mode="json")
    for resource in snapshot["resources"].values():
        resource.pop("api_key", None)
    return snapshot


def _check(record: RunRecord, overrides: Sequence[str], as_json: bool) -> int:
    """Print the parts of a train file, or every problem in it; return the exit code."""
    from agl_train.file import read_train_file
    from agl_train.problems import Problems

    problems = Problems()
    with problems.collected():
        plan = read_train_file(record.file, overrides, problems=problems)
        record.parts = plan.describe()
        record.parts |= plan.check_parts(problems)
    said = [" ".join(str(problem).split()) for problem in problems.found]
    status = "failed" if said else "ok"
    if as_json:
        result = {"file": record.file, "status": status, "parts": record.parts}
        print_json({**result, "problems": said})
    elif not said:
        print_table(["part", "what"], [[key, value] for key, value in record.parts.items()])
        click.echo(f"{record.file} is valid")
    for one in said:
        where = "" if one.startswith(record.file) else f"{record.file}: "
        click.echo(f"agl: error: {where}{one}", err=True)
    return 2 if said else 0


def _print_run(
    record: RunRecord,
    status: str,
    done: _Trained,
) -> None:
    rows = [["run", record.name], ["status", status], ["seconds", f"{record.seconds:.1f}"]]
    rows += done.failures.rows()
    if done.retried:
        rows.append(["attempts retried", _retries_in_short(done.retried)])
    for name, value in record.metrics.items():
        line = curve(record.curves.get(name, ()), sys.stdout.encoding)
        rows.append([name, f"{value:.4g}  {line}".rstrip()])
    latest = done.latest
    if latest is not None:
        rows.append(["best resources", f"{latest.resources_id} (version {latest.version})"])
        rows += [[f"  {name}", _in_short(it)] for name, it in latest.resources.items()]
    print_table(["", ""], rows)


def _print_test(tasks: Sized, done: _Trained) -> None:
    click.echo(f"\nTest on {len(tasks)} tasks that the run did not use, paired by task:")
    if done.tested is not None:
        print_table(["", ""], done.tested.rows("before", "after"))
    elif done.test_failure:
        click.echo(f"no result: {done.test_failure}")
    else:
        click.echo("not run: the run changed no prompt")


def _retries_in_short(retried: Mapping[str, int]) -> str:
    """Return such as ``3 failed, 1 succeeded late``."""
    return ", ".join(
        f"{count} {status}{' late' * (status == 'succeeded')}"
        for status, count in sorted(retried.items())
    )


def _print_next(
    record: RunRecord,
    status: str,
    overrides: Sequence[str],
    trainer: Trainer,
    done: _Trained,
) -> None:
    """Print what to do next, as commands: resume, score the result, look at the rollouts."""
    if status == "interrupted":
        again = command_again("train", record, overrides, "--run", record.name, "--resume")
        click.echo(f"resume it: {again}")
        return
    latest = done.latest
    behind = latest is not None and any(
        isinstance(it, ProxyLLM) for it in latest.resources.values()
    )
    if behind and trainer.llm_proxy is None:
        click.echo("score it: serve the trained model first; the proxy of the run has ended")
    elif status == "succeeded" and latest is not None:
        scored = command_again("eval", record, overrides, "--resources", latest.resources_id)
        click.echo(f"score it: {scored}")
    if done.test_failure:
        again = command_again("train", record, overrides, "--run", record.name, "--resume")
        click.echo(f"test it again: {again}")
    elif status == "succeeded" and not done.tested and "val/reward_excess" in record.metrics:
        again = ["--run", record.name, "--resume", "--set", "test_dataset=FRESH_TASKS.jsonl"]
        click.echo(f"test it: {command_again('train', record, overrides, *again)}")
    path = getattr(trainer.store, "path", None)
    looks = {
        "agl-trace": ("look at its last rollout", ["agl", "trace", "latest", "--path", str(path)]),
        "agl-dashboard": ("look at all of it", ["agl", "dashboard", str(path)]),
    }
    for package, (what, words) in looks.items():
        if path and _installed(package):
            click.echo(f"{what}: {shlex.join(words)}")


def _installed(name: str) -> bool:
    """Return whether a distribution is installed."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _in_short(resource: Any) -> str:
    fields = resource.model_dump(mode="json", exclude={"resource_type", "api_key"})
    return str(fields.get("template") or fields)
