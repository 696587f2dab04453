"""The base class of experiment trackers."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import Field

import agl_core
from agl_core.metrics import Instrument, Metric, Metrics
from agl_core.plugins import ComponentConfig, hookimpl
from agl_core.types import Checkpoint, PromptTemplate, Resource, ResourcesUpdate
from agl_tracking.sums import Sums

__all__ = ["Run", "RunTracker", "TrackerConfig"]

logger = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 60.0
"""How long the end of a run waits for what is not written yet, if there is nothing to upload."""
_FINISH_SECONDS: Final = 10.0
"""How long it then waits for the end of the run at the tracker: a few requests."""


class TrackerConfig(ComponentConfig):
    """Options that every tracker has."""

    name: str | None = None
    """Name of the run; by default the algorithm and the time."""
    config: dict[str, Any] = Field(default_factory=dict)
    """What to show as configuration besides the parts of the run: hyperparameters, a commit."""
    upload_checkpoints: bool = False
    """Whether to upload the files of checkpoints; otherwise their path is shown."""
    upload_seconds: float = Field(default=600, gt=0)
    """How long the end of a run waits for uploads; what is left then is not uploaded."""


@dataclass(frozen=True)
class Run:
    """A run that starts."""

    run_id: str
    name: str
    mode: str
    config: Mapping[str, Any]


_Jobs: TypeAlias = "queue.SimpleQueue[Callable[[], None] | None]"
"""What a thread is to call; None ends it."""


@dataclass
class _Current:
    """The state of a run in the process that tracks it."""

    tracker: RunTracker
    """A copy, which keeps what belongs to this run: a call that hangs may outlive the run."""
    process: int = field(default_factory=os.getpid)
    step: int = 0
    jobs: _Jobs = field(default_factory=queue.SimpleQueue)
    texts: dict[str, str] = field(default_factory=dict)
    has_begun: bool = False
    uploads: bool = False

    def __post_init__(self) -> None:
        self._thread = self._work(self.jobs)

    def later(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread, after what was asked for before."""
        self.jobs.put(lambda: call(*arguments))

    def begin(self, run: Run) -> None:
        self.tracker.begin(run)
        self.has_begun = True

    def finish(self, error: BaseException | None) -> None:
        """End the run at the tracker, even if a call hangs; what is not written then is dropped."""

        def finish() -> None:
            self.tracker.finish(error)

        self.jobs.put(finish)
        self.jobs.put(None)
        seconds = self.tracker.config.upload_seconds if self.uploads else _WAIT_SECONDS
        self._thread.join(seconds)
        if not self._thread.is_alive():
            return
        name = type(self.tracker).__name__
        logger.warning("%s did not take the rest of the run within %g s", name, seconds)
        left = _drained(self.jobs)
        self.jobs.put(None)
        if finish in left and self.has_begun:
            last: _Jobs = queue.SimpleQueue()
            last.put(finish)
            last.put(None)
            self._work(last).join(_FINISH_SECONDS)

    def _work(self, jobs: _Jobs) -> threading.Thread:
        arguments = type(self.tracker).__name__, jobs
        thread = threading.Thread(target=_work, args=arguments, name="agl-tracking", daemon=True)
        thread.start()
        return thread


class RunTracker(Metrics):
    """Writes a run's metrics, configuration, prompts and checkpoints to an experiment tracker.

    Active in the process of the trainer, which has the algorithm, its steps and the rollouts;
    copies in the processes of runners do nothing. The methods that a tracker implements are called
    in a thread, one at a time and in the order of the events, so they may wait for a network. Their
    errors are logged and do not end the run. Each run calls those of a copy of the object, so an
    attribute that :meth:`begin` sets is that run's. If a call hangs at the end of a run,
    :meth:`finish` is called beside it.

    Args:
        config: The options.
    """

    def __init__(self, config: TrackerConfig) -> None:
        super().__init__()
        self.config = config
        self._reset()

    def _reset(self) -> None:
        self._current: _Current | None = None
        self._sums = Sums()

    # -- what a tracker implements -----------------------------------------------------------------

    @abstractmethod
    def begin(self, run: Run) -> None:
        """Create the run and write its configuration."""

    @abstractmethod
    def write_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write values of a step; every one is finite."""

    @abstractmethod
    def write_text(self, step: int, name: str, text: str) -> None:
        """Write a text: a prompt, or the JSON of another resource."""

    @abstractmethod
    def write_file(self, step: int, name: str, path: Path) -> None:
        """Upload a file or a folder of a checkpoint."""

    @abstractmethod
    def finish(self, error: BaseException | None) -> None:
        """Write what is buffered and end the run; ``error`` is the error that ended it, if any."""

    # -- events ------------------------------------------------------------------------------------

    @hookimpl
    def run_started(self, run_id: str, mode: str, config: Mapping[str, Any]) -> None:
        parts = {str(key): value for key, value in config.items()}
        versions = {"agl": agl_core.__version__, "python": platform.python_version()}
        whole = {"mode": mode, **parts, **versions, **self.config.config}
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        name = self.config.name or f"{parts.get('algorithm', mode)} {stamp}"
        # Not `copy.copy`: that copies as pickle does, so the options alone.
        tracker = object.__new__(type(self))
        vars(tracker).update(vars(self))
        current = self._current = _Current(tracker)
        current.later(current.begin, Run(run_id, name, mode, whole))

    @hookimpl
    def algorithm_step(self, step: int, metrics: Mapping[str, float]) -> None:
        current = self._here()
        if current is not None:
            current.step = step
            _write(current, step, {**metrics, **self._sums.figures()})

    @hookimpl
    def resources_changed(self, resources: ResourcesUpdate) -> None:
        current = self._here()
        if current is None:
            return
        for name, resource in resources.resources.items():
            if isinstance(resource, Checkpoint):
                self._checkpoints(current, resource.state)
            else:
                _write_text(current, name, _text_of(resource))

    @hookimpl
    def run_saved(self, state: Any) -> None:
        current = self._here()
        if current is not None:
            self._checkpoints(current, state)

    def _checkpoints(self, current: _Current, state: Any) -> None:
        """Write what a state names as the paths of checkpoints, one of each policy, say."""
        for key, path in _paths_in(state).items():
            name = key if key.startswith("checkpoint") else f"checkpoint-{key}"
            if _write_text(current, name, str(path)) and self.config.upload_checkpoints:
                current.uploads = True
                current.later(current.tracker.write_file, current.step, name, path)

    @hookimpl
    def run_finished(self, error: BaseException | None) -> None:
        current = self._here()
        if current is None:
            return
        _write(current, current.step, self._sums.figures())
        current.finish(error)
        Metrics.__init__(self)
        self._reset()

    def _here(self) -> _Current | None:
        current = self._current
        return current if current is not None and current.process == os.getpid() else None

    # -- metrics -----------------------------------------------------------------------------------

    def instrument(self, metric: Metric) -> Instrument:
        return self._sums.instrument(metric)

    def after_fork(self) -> None:
        super().after_fork()
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._reset()


def _write(current: _Current, step: int, metrics: Mapping[str, float]) -> None:
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    if finite:
        current.later(current.tracker.write_metrics, step, finite)


def _write_text(current: _Current, name: str, text: str) -> bool:
    """Write a text if it is a new one; return whether it is."""
    if current.texts.get(name) == text:
        return False
    current.texts[name] = text
    current.later(current.tracker.write_text, current.step, name, text)
    return True


def _paths_in(state: Any) -> dict[str, Path]:
    """Return the texts of a state that are absolute paths of what is there, by their keys."""
    items: dict[str, Any] = state if isinstance(state, dict) else {}
    texts = {key: text for key, text in items.items() if isinstance(text, str)}
    return {key: Path(text) for key, text in texts.items() if _is_path(text)}


def _is_path(text: str) -> bool:
    try:
        return Path(text).is_absolute() and Path(text).exists()
    except OSError:  # a text that is too long for a name
        return False


def _text_of(resource: Resource) -> str:
    if isinstance(resource, PromptTemplate):
        return resource.template
    return json.dumps(resource.model_dump(mode="json", exclude={"api_key"}), indent=2, default=str)


def _drained(jobs: _Jobs) -> list[Callable[[], None] | None]:
    """Take everything out of a queue."""
    left: list[Callable[[], None] | None] = []
    while True:
        try:
            left.append(jobs.get_nowait())
        except queue.Empty:
            return left


def _work(tracker: str, jobs: _Jobs) -> None:
    failed = False
    while (job := jobs.get()) is not None:
        try:
            job()
        except Exception as error:
            # A tracker that is down fails at each call: one traceback is enough.
            if failed:
                logger.debug("%s: %r", tracker, error)
            else:
                logger.exception("%s failed; the run goes on without it", tracker)
            failed = True
