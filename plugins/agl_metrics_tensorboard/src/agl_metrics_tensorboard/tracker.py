"""The tracker ``tensorboard``."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from agl_core.plugins import configured_by
from agl_tracking import Run, RunTracker, TrackerConfig

__all__ = ["TensorBoardConfig", "TensorBoardTracker"]

logger = logging.getLogger(__name__)


class TensorBoardConfig(TrackerConfig):
    """Options of :class:`TensorBoardTracker`."""

    folder: Path | None = None
    """Where the runs are, each a folder with its name; None is ``agl-runs/tensorboard``."""


class TensorBoardTracker(RunTracker):
    """Writes event files; ``tensorboard --logdir agl-runs/tensorboard`` shows them."""

    config: TensorBoardConfig

    @configured_by(TensorBoardConfig)
    def __init__(self, config: TensorBoardConfig) -> None:
        super().__init__(config)

    def begin(self, run: Run) -> None:
        runs = self.config.folder or Path("agl-runs/tensorboard")
        folder = _new_folder(runs / re.sub(r"[^\w.-]+", "_", run.name))
        self._writer: Any = SummaryWriter(str(folder))
        self._writer.add_text("configuration", _code(json.dumps(run.config, indent=2, default=str)))
        logger.info("Metrics: tensorboard --logdir %s", runs)

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def write_text(self, step: int, name: str, text: str) -> None:
        self._writer.add_text(name, _code(text), step)

    def write_file(self, step: int, name: str, path: Path) -> None:
        """Event files have no files in them; the checkpoint's path is a text."""

    def finish(self, error: BaseException | None) -> None:
        if error is not None:
            self._writer.add_text("error", _code(repr(error)))
        self._writer.close()


def _new_folder(folder: Path) -> Path:
    """Return a folder that does not exist: two runs in one would be one curve."""
    number, found = 1, folder
    while found.exists():
        number += 1
        found = folder.with_name(f"{folder.name}-{number}")
    return found


def _code(text: str) -> str:
    # Shown as Markdown, which an indented block leaves as it is; a fence may be part of a prompt.
    return "\n".join(f"    {line}" for line in text.splitlines())
