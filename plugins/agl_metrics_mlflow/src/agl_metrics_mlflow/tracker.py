"""The tracker ``mlflow``."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from pydantic import Field

from agl_core.plugins import configured_by
from agl_tracking import Run, RunTracker, TrackerConfig

__all__ = ["MlflowConfig", "MlflowTracker"]

# Limits of MLflow's REST API ("Log Batch").
_METRICS: Final = 1000
_PARAMETERS: Final = 100
"""Most of a request, and most characters of a value and a name: limits of MLflow's REST API."""
_PARAMETER_CHARACTERS: Final = 500
_NAME_CHARACTERS: Final = 250


class MlflowConfig(TrackerConfig):
    """Options of :class:`MlflowTracker`."""

    tracking_uri: str | None = None
    """The server, or a folder or database; by default MLFLOW_TRACKING_URI."""
    experiment: str = "agl"
    """Name of the experiment; created if there is none."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the run."""


class MlflowTracker(RunTracker):
    """Logs to MLflow: parameters, metrics by step, prompts and checkpoints as artifacts."""

    config: MlflowConfig

    @configured_by(MlflowConfig)
    def __init__(self, config: MlflowConfig) -> None:
        super().__init__(config)

    def begin(self, run: Run) -> None:
        self._texts: Counter[str] = Counter()
        self._client = client = MlflowClient(self.config.tracking_uri)
        found = client.get_experiment_by_name(self.config.experiment)
        experiment = found.experiment_id if found else self._new_experiment()
        tags = {"agl.run_id": run.run_id, **self.config.tags}
        self._id: str = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
        client.log_dict(self._id, dict(run.config), "configuration.json")
        parameters = [
            Param(_name(name), str(value)[:_PARAMETER_CHARACTERS])
            for name, value in run.config.items()
        ]
        for start in range(0, len(parameters), _PARAMETERS):
            client.log_batch(self._id, params=parameters[start : start + _PARAMETERS])

    def _new_experiment(self) -> str:
        try:
            return self._client.create_experiment(self.config.experiment)
        except Exception:
            # Another run may have created it since.
            found = self._client.get_experiment_by_name(self.config.experiment)
            if found is None:
                raise
            return found.experiment_id

    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        values = [Metric(_name(name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(values), _METRICS):
            self._client.log_batch(self._id, metrics=values[start : start + _METRICS])

    def write_text(self, step: int, name: str, text: str) -> None:
        self._texts[name] += 1  # a step of a search has several prompts
        file = f"{_name(name)}/{self._texts[name]:04}-step-{step}.txt"
        self._client.log_text(self._id, text, file)

    def write_file(self, step: int, name: str, path: Path) -> None:
        where = f"{_name(name)}/{step}"
        if path.is_dir():
            self._client.log_artifacts(self._id, str(path), where)
        else:
            self._client.log_artifact(self._id, str(path), where)

    def finish(self, error: BaseException | None) -> None:
        tags: Sequence[RunTag] = [] if error is None else [RunTag("error", repr(error)[:5000])]
        self._client.log_batch(self._id, tags=tags)
        stopped = isinstance(error, KeyboardInterrupt)
        status = "FINISHED" if error is None else "KILLED" if stopped else "FAILED"
        self._client.set_terminated(self._id, status)


def _name(name: str) -> str:
    """Return a name with the characters that MLflow accepts."""
    return re.sub(r"[^\w.\-/ ]", "_", name)[:_NAME_CHARACTERS]
