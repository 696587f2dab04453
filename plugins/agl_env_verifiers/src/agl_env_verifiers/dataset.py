"""The tasks of a taskset as a dataset."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import Any, SupportsIndex

from verifiers.v1 import EnvConfig, load_taskset

from agl_core.errors import ConfigError, error_text


class TasksetView:
    """A range of the tasks of a taskset, loaded at the first use; each is a dict of task data.

    Args:
        config: Config of the environment.
        start: Number of tasks to leave out.
        count: Number of tasks; None: all that follow.
        path: Key of the environment's reference in a configuration, for messages.

    Raises:
        ConfigError: At the first use: the taskset cannot be loaded.
    """

    def __init__(self, config: EnvConfig, start: int, count: int | None, path: str) -> None:
        self._config = config
        self._start = start
        self._count = count
        self._path = path

    @cached_property
    def _tasks(self) -> list[dict[str, Any]]:
        stop = None if self._count is None else self._start + self._count
        try:
            tasks = itertools.islice(load_taskset(self._config.taskset), self._start, stop)
            return [task.data.model_dump(mode="json", exclude_unset=True) for task in tasks]
        except Exception as error:  # a taskset downloads and parses whatever it needs
            said = " ".join(error_text(error).split())
            raise ConfigError(
                f"the tasks of verifiers:{self._config.env_id} cannot be loaded: {said}",
                path=self._path,
            ) from error

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        return self._tasks[index]
