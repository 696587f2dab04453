"""Options that the commands of ``agl promote`` share, and the store of a train file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from agl_core.trainer import Trainer
    from agl_train import TrainPlan

__all__ = ["file_argument", "json_option", "name_option", "opened", "set_option"]

file_argument = click.argument("file", type=click.Path(path_type=Path))
name_option = click.option("--name", required=True, help="Name of the promotion.")
json_option = click.option("--json", "as_json", is_flag=True, help="End with one JSON object.")
set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a key of FILE; may be repeated.",
)


@contextmanager
def opened(file: Path, overrides: Sequence[str]) -> Iterator[tuple[TrainPlan, Trainer]]:
    """Yield a train file and its trainer; close the store."""
    from agl_train import blame, read_train_file

    with blame(file):
        train_plan = read_train_file(file, overrides)
        trainer = train_plan.build_trainer(with_algorithm=False)
    try:
        yield train_plan, trainer
    finally:
        asyncio.run(trainer.store.close())
