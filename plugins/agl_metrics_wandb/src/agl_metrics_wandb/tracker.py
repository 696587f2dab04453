"""The tracker ``wandb``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import wandb
from pydantic import Field

from agl_core.plugins import configured_by
from agl_tracking import Run, RunTracker, TrackerConfig

__all__ = ["WandbConfig", "WandbTracker"]


class WandbConfig(TrackerConfig):
    """Options of :class:`WandbTracker`; those that are None follow the variables of W&B."""

    project: str = "agl"
    """Project of the run."""
    entity: str | None = None
    """User or team that the project belongs to."""
    group: str | None = None
    """What to show runs together under."""
    tags: list[str] = Field(default_factory=list)
    """Tags of the run, to filter runs by."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """``offline`` keeps the run in ``folder``; ``wandb sync`` uploads it later."""
    folder: Path | None = None
    """Where W&B keeps its files; by default ``wandb`` in the current folder."""


class WandbTracker(RunTracker):
    """Logs to Weights & Biases; log in with ``wandb login`` or WANDB_API_KEY."""

    config: WandbConfig

    @configured_by(WandbConfig)
    def __init__(self, config: WandbConfig) -> None:
        super().__init__(config)

    def begin(self, run: Run) -> None:
        config = self.config
        if config.folder is not None:
            config.folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(
            project=config.project,
            entity=config.entity,
            group=config.group,
            tags=config.tags,
            mode=config.mode,
            dir=config.folder,
            name=run.name,
            job_type=run.mode,
            config=dict(run.config),
            reinit="create_new",  # a program may have a run of its own
        )

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        # W&B drops values of a step below the last; a run's own step may begin at 0 again.
        self._run.log({**metrics, "step": step})

    def write_text(self, step: int, name: str, text: str) -> None:
        self._run.log({f"texts/{name}": wandb.Html(f"<pre>{_escaped(text)}</pre>"), "step": step})
        self._run.summary[name] = text

    def write_file(self, step: int, name: str, path: Path) -> None:
        artifact = wandb.Artifact(f"{name}-{self._run.id}", type="model", metadata={"step": step})
        add: Any = artifact.add_dir if path.is_dir() else artifact.add_file
        add(str(path))
        self._run.log_artifact(artifact)

    def finish(self, error: BaseException | None) -> None:
        if error is not None:
            self._run.summary["error"] = repr(error)
        self._run.finish(exit_code=0 if error is None else 1)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
