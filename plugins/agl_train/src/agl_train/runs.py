"""Helpers of ``agl train`` and ``agl eval``: their options, their errors, and the run's record."""

from __future__ import annotations

import math
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from agl_cli_kit import print_json
from agl_core.errors import AglError, ConfigError, MissingDependencyError, error_message
from agl_core.plugins import add_listener, hookimpl, remedy, remove_listener
from agl_core.types import RolloutStatus

if TYPE_CHECKING:
    from agl_core.store import LightningStore
    from agl_core.trainer import Trainer
    from agl_train.file import TrainPlan

F = TypeVar("F", bound=Callable[..., Any])
_ENDINGS: Final[tuple[RolloutStatus, ...]] = ("succeeded", "failed", "cancelled")
_NAMES: Final = "(?:key|password|secret|token|uri|url)"
"""How the names of options end whose values are secrets; the URL of a store has a password."""
_SECRET: Final = re.compile(rf"(?i){_NAMES}$")
_SECRET_IN_TABLE: Final = re.compile(
    rf"""(?i)({_NAMES}["']?\s*=\s*)("(?:\\.|[^"\\])*"|'[^']*'|[^\s,}}]+)"""
)
_PASSWORD: Final = re.compile(r"//[^/\s\"']+@")
"""The user and the password in a URL; a password may contain "@"."""
INTERRUPTED: Final = 130
"""Exit code of a run that Ctrl+C ended: 128 + SIGINT, as in shells."""


def price_option(command: F) -> F:
    """Add ``--price INPUT OUTPUT``: the cost of a million input and of a million output tokens."""
    add = click.option(
        "--price",
        nargs=2,
        type=float,
        metavar="INPUT OUTPUT",
        help="Cost of a million input tokens and of a million output tokens.",
    )
    return add(command)


def run_options(command: F) -> F:
    """Add the argument FILE and the options that both commands take."""
    options = [
        click.argument("file", type=click.Path(path_type=Path)),
        click.option(
            "--set",
            "overrides",
            metavar="KEY=VALUE",
            multiple=True,
            help="Override a key of FILE, e.g. --set trainer.n_runners=4; may be repeated.",
        ),
        click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def blame(file: Path) -> Generator[None]:
    """Prefix errors about a train file with the file's name."""
    try:
        yield
    except ConfigError as error:
        if str(error).startswith(str(file)):
            raise
        raise ConfigError(f"{file}: {error}") from error
    except MissingDependencyError:
        raise  # the environment is wrong, not the file
    except AglError as error:
        raise type(error)(f"{file}: {error}") from error


@contextmanager
def stopped_by_signals() -> Generator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl+C: service managers and terminals end runs with them."""

    def stop(_signum: int, _frame: object) -> None:
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)
        else:  # a shell ignores Ctrl+C for programs that it starts in the background
            raise KeyboardInterrupt

    previous: dict[int, Any] = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Others are ignored (nohup) or handled by the program that runs this command.
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            previous[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def set_up_logging(plan: TrainPlan) -> None:
    """Set up logging as the file's table ``logging`` says."""
    from agl_cli_kit import setup_logging

    table = plan.content.logging
    setup_logging(
        table.level,
        color=sys.stderr.isatty() if table.color is None else table.color,
        files=table.files,
        submodule_levels=table.submodule_levels,
    )


def say_store(trainer: Trainer, plan: TrainPlan, as_json: bool) -> None:
    """Print which store is used, as the first line of output."""
    click.echo(_describe_store(trainer.store, plan.store_name), err=as_json)


def _describe_store(store: LightningStore, name: str) -> str:
    """Return a line with the kind of a store, its location, and whether its data is durable."""
    for attribute in ("path", "server_address_root", "endpoint"):
        where = getattr(store, attribute, None)
        if where:
            return f"store: {name}, {where}"
    if store.capabilities.get("durable"):
        return f"store: {name}"
    from agl_core.store import default_store

    usable = default_store(".")["type"] == "sqlite"
    advice = f"; {remedy('store', 'sqlite')}" if name == "memory" and not usable else ""
    return f"store: {name}, its data is lost when this process ends{advice}"


@dataclass
class RunRecord:
    """Facts about a run; registered as a listener, it fills its fields while the run goes on."""

    file: str
    run_id: str = ""
    name: str = ""
    parts: dict[str, str] = field(default_factory=dict[str, str])
    started: float = field(default_factory=time.time)
    steps: int = 0
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    curves: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Values of each metric over the steps of this process."""
    error: BaseException | None = None
    """What ended the run: an error of the algorithm, a runner or the store."""

    @hookimpl
    def run_started(self, run_id: str) -> None:
        self.run_id = run_id

    @hookimpl
    def run_finished(self, error: BaseException | None) -> None:
        self.error = error

    @hookimpl
    def algorithm_step(self, step: int, metrics: Mapping[str, float]) -> None:
        self.steps = step + 1
        self.metrics.update(metrics)
        for name, value in metrics.items():
            self.curves.setdefault(name, []).append(value)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.time() - self.started

    async def count(self, store: LightningStore) -> dict[str, int]:
        """Count the rollouts in the store, in total and by final status."""
        # Only the totals are needed, so the pages are small.
        counts = {"rollouts": (await store.query_rollouts(limit=1)).total}
        for status in _ENDINGS:
            counts[status] = (await store.query_rollouts(status_in=[status], limit=1)).total
        return counts

    async def count_run(self, store: LightningStore, run: str) -> dict[str, int]:
        """Count the rollouts of one run, in total and by final status."""
        from agl_algorithm_kit import count_rollouts

        counts = await count_rollouts(store, run)
        return {"rollouts": counts.total(), **{status: counts[status] for status in _ENDINGS}}

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.run_id,
            **({"name": self.name} if self.name else {}),
            "file": self.file,
            "started": self.started,
            "seconds": round(self.seconds, 3),
            "parts": self.parts,
        }


@contextmanager
def report_failure(record: RunRecord, as_json: bool) -> Generator[None]:
    """With ``--json``, print the record of a run that fails, too."""
    try:
        yield
    except Exception as error:
        if as_json:
            said = {"run": record.as_json(), "status": "failed", "error": error_json(error)}
            print_json(said)
        raise


def error_json(error: Exception) -> dict[str, str]:
    """Return an error as output with ``--json`` has it."""
    return {"type": type(error).__name__, "message": error_message(error)}


@contextmanager
def listening(record: RunRecord) -> Generator[None]:
    """Register a record as a listener while the context is open."""
    name = add_listener(record)
    try:
        yield
    finally:
        remove_listener(name)


def finite(value: float) -> float | None:
    """Return a number that JSON can represent: None for infinity and NaN."""
    return value if math.isfinite(value) else None


def not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty value, which a shell makes of a variable that is not set."""
    if value is not None and not value.strip():
        raise click.BadParameter("must not be empty", context, parameter)
    return value


def choose_run(runs: Mapping[str, Any], stem: str, name: str | None, resume: bool) -> str:
    """Return the name of the run to start or resume."""
    if name is None:
        stem = re.sub(r"[^\w.-]", "-", stem)
        of_file = [run for run in runs if re.fullmatch(rf"{re.escape(stem)}(-\d+)?", run)]
        if resume and of_file:
            return of_file[-1]
        name, number = stem, 1
        while name in runs:
            number += 1
            name = f"{stem}-{number}"
    elif name in runs and not resume:
        raise ConfigError(
            f"the run {name!r} exists already: resume it with --resume, or give another name",
            path="--run",
        )
    if resume and name not in runs:
        known = f"the store has {', '.join(runs)}" if runs else "the store has none"
        raise ConfigError(f"there is no run {name!r} to resume; {known}", path="--resume")
    return name


def command_again(name: str, record: RunRecord, overrides: Sequence[str], *options: str) -> str:
    """Return a command on the file of a run, with the same overrides, as a shell takes it.

    The overrides are without the values of secrets, because logs and the store keep the command.
    """
    words = ["agl", name, record.file]
    for override in overrides:
        words += ["--set", shown(override)]
    return shlex.join([*words, *options])


def shown(override: str) -> str:
    """Return an override without the values of secrets, also of those in a table or a URL."""
    key, equals, value = override.partition("=")
    if _SECRET.search(key.strip()):
        return f"{key}{equals}***"
    value = _SECRET_IN_TABLE.sub(r"\1***", value)
    return f"{key}{equals}{_PASSWORD.sub('//***@', value)}"
