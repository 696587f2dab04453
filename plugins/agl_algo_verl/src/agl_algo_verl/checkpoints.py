"""A run's identity on disk and in the store, so that it goes on where it was, and nowhere else.

verl keeps model, optimizer and place in the data below ``trainer.default_local_dir``. Beside them
lies a note of the run they belong to: two runs that share a folder would otherwise go on from each
other's weights without a word. In a run with a name the store holds the last checkpoint as well.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final

from agl_core.algorithm import Run, cancel_rollouts
from agl_core.errors import ConfigError
from agl_core.store import LightningStore
from agl_core.types import RolloutStatus

__all__ = ["RunKeeper", "cancel_leftovers", "keep_metrics_file", "latest_step"]

logger = logging.getLogger(__name__)

_NOTE: Final = "agl_run.json"
_LATEST: Final = "latest_checkpointed_iteration.txt"
_OPEN: Final[list[RolloutStatus]] = ["queuing", "requeuing", "preparing", "running"]
_PAGE: Final = 1000


def latest_step(folder: Path) -> int:
    """Return the step of the last checkpoint in a folder; 0 if there is none."""
    note = folder / _LATEST
    return int(note.read_text().strip()) if note.exists() else 0


class RunKeeper:
    """Keeps a run and its folder together.

    Args:
        run: The run.
        folder: Where verl's checkpoints go.
        model: Path of the model that the run began with.
        resumes: Whether verl takes up the last checkpoint it finds (``resume_mode: auto``).
    """

    def __init__(self, run: Run, folder: Path, model: str, *, resumes: bool) -> None:
        self._run = run
        self._folder = folder
        self._model = model
        self._resumes = resumes
        self.state: dict[str, Any] = {"step": 0, "folder": "", "generation": 0}

    @property
    def next_start(self) -> str:
        """Where a trainer would begin that is started now, in words."""
        if self._resumes and self.state["step"]:
            return f"the checkpoint of step {self.state['step']}"
        return "where it began: there is no checkpoint of it"

    async def open(self) -> int:
        """Check that folder and run belong together; return how often the run was begun before.

        Raises:
            ConfigError: The folder is another run's, or the run's checkpoint is not in it.
        """
        if isinstance(self._run.state, dict):
            self.state.update(self._run.state)
        self._check()
        generation = self.state["generation"]
        self.state["generation"] = generation + 1
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / _NOTE).write_text(
            json.dumps({"run": self._run.name, "model": self._model}) + "\n"
        )
        if self._run.name:
            await self._run.save(self.state)
        return generation

    async def saved(self, step: int, folder: str) -> None:
        """Note a checkpoint."""
        self.state.update(step=step, folder=folder)
        if self._run.name:
            await self._run.save(self.state, metrics={"checkpoint_step": float(step)})

    def _check(self) -> None:
        if not self._resumes:
            return
        there = latest_step(self._folder)
        note = self._folder / _NOTE
        path = "config.trainer.default_local_dir"
        if there and note.exists():
            owner = json.loads(note.read_text())
            if owner["run"] != self._run.name:
                raise ConfigError(
                    f"{self._folder} has checkpoints of the run {owner['run']!r}, and this is "
                    f"{self._run.name!r}: choose another folder, or set resume_mode to disable",
                    path=path,
                )
            if owner["model"] != self._model:
                raise ConfigError(
                    f"{self._folder} has checkpoints of {owner['model']}, not of {self._model}: "
                    "choose another folder, or set resume_mode to disable",
                    path=path,
                )
        if self._run.name and there and not self.state["generation"]:
            raise ConfigError(
                f"the run {self._run.name!r} is new to the store, but {self._folder} has a "
                "checkpoint: choose another folder, or set resume_mode to disable",
                path=path,
            )
        if self.state["step"] > there:
            raise ConfigError(
                f"the run {self._run.name!r} was saved at step {self.state['step']} in "
                f"{self.state['folder']}, which is not there: bring it back, or give the run "
                "another name",
                path=path,
            )


async def cancel_leftovers(store: LightningStore, run: str) -> int:
    """Cancel what a run that was broken off has left open; return how many rollouts.

    They were given out for weights that are gone. Their tasks are given out again.
    """
    found: list[str] = []
    offset, total = 0, 1
    while offset < total:
        page = await store.query_rollouts(status_in=_OPEN, limit=_PAGE, offset=offset)
        found += [r.rollout_id for r in page if (r.metadata or {}).get("run") == run]
        offset, total = offset + _PAGE, page.total
    if found:
        logger.info("%d rollouts of the run %r were left open; cancelling them", len(found), run)
        await cancel_rollouts(store, found)
    return len(found)


def keep_metrics_file(path: Path, step: int) -> None:
    """Set aside what verl's file logger wrote before: it would begin the file anew."""
    if path.exists() and path.stat().st_size:
        aside = path.with_name(f"{path.stem}.until-{step}{path.suffix}")
        logger.info("earlier metrics are in %s", aside)
        path.replace(aside)
