"""Checks that a run resumes from its own checkpoints only.

verl saves model, optimizer and data position below ``trainer.default_local_dir``. A file beside
them names the run; without it, two runs that share a folder would silently resume from each other's
weights. For a named run the store holds the last checkpoint as well.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

from agl_algorithm_kit import cancel_rollouts
from agl_core.algorithm import Run
from agl_core.errors import ConfigError
from agl_core.store import LightningStore
from agl_core.types import RolloutStatus

__all__ = ["RunCheckpoints", "cancel_leftovers", "keep_metrics_file", "latest_step"]

logger = logging.getLogger(__name__)

_RUN_FILE: Final = "agl_run.json"
_LATEST: Final = "latest_checkpointed_iteration.txt"
_OPEN: Final[list[RolloutStatus]] = ["queuing", "requeuing", "preparing", "running"]
_PAGE: Final = 1000
"""Rollouts per query: a few round trips for a run, and none that takes seconds."""


def latest_step(folder: Path) -> int:
    """Return the step of the last checkpoint in a folder; 0 if there is none."""
    file = folder / _LATEST
    return int(file.read_text().strip()) if file.exists() else 0


class RunCheckpoints:
    """Records which checkpoints belong to a run.

    Args:
        run: The run.
        folder: Folder of verl's checkpoints.
        model: Path of the model that the run started from.
        resumes: Whether verl loads the last checkpoint that it finds (``resume_mode: auto``).
    """

    def __init__(self, run: Run, folder: Path, model: str, *, resumes: bool) -> None:
        self._run = run
        self._folder = folder
        self._model = model
        self._resumes = resumes
        self.state: dict[str, Any] = {"step": 0, "folder": "", "generation": 0}

    @property
    def next_start(self) -> str:
        """Where a trainer started now would begin, in words."""
        if self._resumes and self.state["step"]:
            return f"the checkpoint of step {self.state['step']}"
        return "the beginning, because there is no checkpoint"

    async def open(self) -> int:
        """Check that folder and run belong together; return the number of earlier starts.

        Raises:
            ConfigError: The folder belongs to another run, or lacks the run's checkpoint.
        """
        if isinstance(self._run.state, dict):
            self.state.update(self._run.state)
        self._check()
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
        self.state.update(step=step, folder=folder)
        if self._run.name:
            await self._run.save(self.state, metrics={"checkpoint_step": float(step)})

    def _check(self) -> None:
        if not self._resumes:
            return
        step = latest_step(self._folder)
        run_file = self._folder / _RUN_FILE
        path = "config.trainer.default_local_dir"
        if step and run_file.exists():
            owner = json.loads(run_file.read_text())
            if owner["run"] != self._run.name:
                raise ConfigError(
                    f"{self._folder} has checkpoints of the run {owner['run']!r}, not of "
                    f"{self._run.name!r}: choose another folder, or set resume_mode to disable",
                    path=path,
                )
            if owner["model"] != self._model:
                raise ConfigError(
                    f"{self._folder} has checkpoints of {owner['model']}, not of {self._model}: "
                    "choose another folder, or set resume_mode to disable",
                    path=path,
                )
        if self._run.name and step and not self.state["generation"]:
            raise ConfigError(
                f"the run {self._run.name!r} is new to the store, but {self._folder} has a "
                "checkpoint: choose another folder, or set resume_mode to disable",
                path=path,
            )
        if self.state["step"] > step:
            raise ConfigError(
                f"the run {self._run.name!r} was saved at step {self.state['step']} in "
                f"{self.state['folder']}, which is missing: restore it, or give the run another "
                "name",
                path=path,
            )


async def cancel_leftovers(store: LightningStore, run: str) -> int:
    """Cancel the rollouts that an interrupted run left open; return their number.

    They were enqueued for weights that are gone. Their tasks are enqueued again.
    """
    found: list[str] = []
    offset, total = 0, 1
    while offset < total:
        page = await store.query_rollouts(status_in=_OPEN, limit=_PAGE, offset=offset)
        found += [r.rollout_id for r in page if (r.metadata or {}).get("run") == run]
        offset, total = offset + _PAGE, page.total
    if found:
        logger.info("cancelling %d rollouts that the run %r left open", len(found), run)
        await cancel_rollouts(store, found)
    return len(found)


def keep_metrics_file(path: Path, step: int) -> None:
    """Rename an existing metrics file, which verl's file logger would overwrite."""
    if path.exists() and path.stat().st_size:
        aside = path.with_name(f"{path.stem}.until-{step}{path.suffix}")
        logger.info("earlier metrics are in %s", aside)
        path.replace(aside)
