"""Checks that a run resumes from its own checkpoints only.

verl saves model, optimizer and data position below ``trainer.default_local_dir``. A file beside
them names the run; without it, two runs that share a folder would silently resume from each other's
weights. For a named run the store holds the last checkpoint as well.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from agl_algorithm_kit import cancel_rollouts
from agl_core.algorithm import Run
from agl_core.errors import ConfigError, StoreUnavailableError
from agl_core.store import LightningStore, each_item
from agl_core.types import QUEUING_STATUSES, RUNNING_STATUSES

__all__ = [
    "RunCheckpoints",
    "asks_for_more",
    "cancel_leftovers",
    "keep_metrics_file",
    "latest_step",
]

logger = logging.getLogger(__name__)

_RUN_FILE: Final = "agl_run.json"
_LATEST: Final = "latest_checkpointed_iteration.txt"
_FOLDER: Final = "config.trainer.default_local_dir"
_OPEN: Final = sorted(QUEUING_STATUSES | RUNNING_STATUSES)


def latest_step(folder: Path) -> int:
    """Return the step of the last checkpoint in a folder; 0 if there is none.

    Raises:
        ConfigError: The file that names the step has no number.
    """
    file = folder / _LATEST
    if not file.exists():
        return 0
    text = file.read_text().strip()
    if not text.isdecimal():
        raise ConfigError(
            f"{file} must hold the number of a step, not {text!r}: write that of the last complete "
            "checkpoint, or delete the file to begin anew",
            path=_FOLDER,
        )
    return int(text)


class RunCheckpoints:
    """Records which checkpoints belong to a run.

    Args:
        run: The run.
        folder: Folder of verl's checkpoints.
        model: Path of the model that the run started from.
        resumes: Whether verl loads the last checkpoint that it finds (``resume_mode: auto``).
        epochs: Passes over the tasks that the run is asked for.
    """

    def __init__(
        self, run: Run, folder: Path, model: str, *, resumes: bool, epochs: int = 1
    ) -> None:
        self._run = run
        self._folder = folder
        self._model = model
        self._resumes = resumes
        self._last_step = 0
        self._epochs = epochs
        self.state: dict[str, Any] = {"step": 0, "folder": "", "generation": 0}

    @property
    def next_start(self) -> str:
        """Where a trainer started now would begin, in words."""
        if not self._resumes:
            return "where it began, because resume_mode is not auto"
        if self._last_step:
            return f"the checkpoint of step {self._last_step}"
        return "the beginning, because there is no checkpoint"

    async def open(self) -> int:
        """Check that folder and run belong together; return the number of earlier starts.

        A run that does not resume sets aside which checkpoint of the folder is the last: it must
        not resume from that one later, either.

        Raises:
            ConfigError: The folder belongs to another run, or lacks the run's checkpoint.
        """
        if isinstance(self._run.state, dict):
            self.state.update(self._run.state)
        self.state["epochs"] = self._epochs
        if self._resumes:
            self._check()
        else:
            self._set_latest_aside()
        generation = self.state["generation"]
        self.state["generation"] = generation + 1
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / _RUN_FILE).write_text(
            json.dumps({"run": self._run.name, "model": self._model}) + "\n"
        )
        if self._run.name:
            await self._run.save(self.state)
        return generation

    async def saved(self, step: int, folder: str) -> None:
        """Record a checkpoint."""
        self._last_step = step
        self.state.update(step=step, folder=folder)
        if self._run.name:
            await self._run.save(self.state, metrics={"checkpoint_step": float(step)})

    def _set_latest_aside(self) -> None:
        self.state.update(step=0, folder="")
        file = self._folder / _LATEST
        if file.exists():
            aside = _free_name(file, "before")
            logger.info("%s is now %s, since this run does not resume", file, aside.name)
            file.replace(aside)

    def _check(self) -> None:
        self._last_step = step = latest_step(self._folder)
        run_file = self._folder / _RUN_FILE
        if step and run_file.exists():
            owner = json.loads(run_file.read_text())
            if owner["run"] != self._run.name:
                raise ConfigError(
                    f"{self._folder} has checkpoints of the run {owner['run']!r}, not of "
                    f"{self._run.name!r}: choose another folder, or set resume_mode to disable",
                    path=_FOLDER,
                )
            if owner["model"] != self._model:
                raise ConfigError(
                    f"{self._folder} has checkpoints of {owner['model']}, not of {self._model}: "
                    "choose another folder, or set resume_mode to disable",
                    path=_FOLDER,
                )
        if step and not self._run.name:
            logger.warning(
                "resuming from step %d in %s, since neither run has a name: to begin anew, set "
                "resume_mode to disable or choose another folder",
                step,
                self._folder,
            )
        if self._run.name and step and not self.state["generation"]:
            raise ConfigError(
                f"the run {self._run.name!r} is new to the store, but {self._folder} has a "
                "checkpoint: choose another folder, or set resume_mode to disable",
                path=_FOLDER,
            )
        if self.state["step"] > step:
            raise ConfigError(
                f"the run {self._run.name!r} was saved at step {self.state['step']} in "
                f"{self.state['folder']}, which is missing: restore it, or give the run another "
                "name",
                path=_FOLDER,
            )


def asks_for_more(state: Any, trainer: Mapping[str, Any]) -> bool:
    """Return whether a finished run goes on from its last checkpoint.

    Args:
        state: State of the run.
        trainer: verl's options of the trainer, as the user gave them.
    """
    done: Mapping[str, Any] = state if isinstance(state, dict) else {}
    step, steps = done.get("step", 0), trainer.get("total_training_steps")
    if steps:
        more = steps > step
    else:  # verl's steps follow from its epochs; older versions did not note these
        more = trainer.get("total_epochs", 0) > done.get("epochs", math.inf)
    if more and not step:
        logger.warning(
            "the run has no checkpoint to go on from: another one needs config.trainer.save_freq"
        )
    return more and step > 0


async def cancel_leftovers(store: LightningStore, run: str) -> int:
    """Cancel the rollouts that an interrupted run left open; return their number.

    They were enqueued for weights that are gone. Their tasks are enqueued again.

    Raises:
        StoreUnavailableError: The store does not answer.
    """
    count = 0
    while found := await _open_rollouts(store, run):
        logger.info("cancelling %d rollouts that the run %r left open", len(found), run)
        ended = await cancel_rollouts(store, found)
        if not ended:
            raise StoreUnavailableError(f"{len(found)} rollouts of the run {run!r} are still open")
        count += sum(rollout.status == "cancelled" for rollout in ended)
    return count


async def _open_rollouts(store: LightningStore, run: str) -> list[str]:
    return [
        rollout.rollout_id
        async for rollout in each_item(store.query_rollouts, "rollout_id", status_in=_OPEN)
        if (rollout.metadata or {}).get("run") == run
    ]


def keep_metrics_file(path: Path, step: int) -> None:
    """Rename an existing metrics file, which verl's file logger would overwrite."""
    if path.exists() and path.stat().st_size:
        aside = _free_name(path, f"until-{step}")
        logger.info("earlier metrics are in %s", aside)
        path.replace(aside)


def _free_name(path: Path, label: str) -> Path:
    """Return a name for a file to set aside that no file has yet."""
    names = itertools.chain([label], (f"{label}.{number}" for number in itertools.count(2)))
    paths = (path.with_name(f"{path.stem}.{name}{path.suffix}") for name in names)
    return next(one for one in paths if not one.exists())
