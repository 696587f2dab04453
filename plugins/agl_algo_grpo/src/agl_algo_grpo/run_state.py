"""What a run keeps to be resumed: where its checkpoints are, and what its rollouts depend on."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio

from agl_algo_grpo.config import GRPOConfig
from agl_core.algorithm import Run
from agl_core.errors import ConfigError
from agl_core.types import Dataset, task_digest

__all__ = ["RunState", "options_of", "remove_all", "steps_of"]

logger = logging.getLogger(__name__)

_SINGLE: Final = "checkpoint"
"""Key of the only policy's checkpoint; those of several have the policies' names as keys."""
_SAVED: Final = ".saved"
"""Key of the folders of each checkpoint that the run wrote. No policy's name has a dot."""
_OPTIONS: Final = ".options"
"""Key of the options that the rollouts of a step depend on."""
_TASKS: Final = "tasks"
_DIGESTED: Final = 1000
"""Tasks that the digest of a dataset reads: other datasets differ in them, and one that loads each
task when it is asked is not read as a whole."""


class RunState:
    """The state of a run of GRPO.

    Args:
        run: The run that keeps it.
        names: Names of the policies.
        is_single: Whether there is one policy that has no name of its own.
        options: What :func:`options_of` returns.
    """

    def __init__(
        self, run: Run, names: Sequence[str], is_single: bool, options: Mapping[str, Any]
    ) -> None:
        self._run = run
        self._keys = {name: _SINGLE if is_single else name for name in names}
        self._options = dict(options)
        state: Mapping[str, Any] = run.state or {}
        self._last = _checkpoints(state)
        # Older versions did not note which folders they wrote, but for the last.
        known = [list(self._last.values())] if self._last else []
        self._saved: list[list[str]] = [list(one) for one in state.get(_SAVED, known)]

    async def begin(self) -> dict[str, Path]:
        """Begin or resume the run; return the last checkpoint of each policy, if there is one.

        Raises:
            ConfigError: The run began with other policies, or with other options on which the
                rollouts of a step depend.
        """
        state: Mapping[str, Any] = self._run.state or {}
        _check_same(state.get(_OPTIONS, {}), self._options)
        if self._last and set(self._last) != set(self._keys.values()):
            there, here = ", ".join(sorted(self._last)), ", ".join(sorted(self._keys.values()))
            raise ConfigError(
                f"the run has checkpoints of {there}, not of {here}: give the policies these names "
                "again, or start a run of another name",
                path="algorithm.model",
            )
        if not state:
            await self._run.save(self._state())
        return {name: Path(self._last[key]) for name, key in self._keys.items() if self._last}

    async def add(
        self, folders: Mapping[str, Path], figures: Mapping[str, float], keep: int
    ) -> None:
        """Note new checkpoints, and remove the oldest of those that this run wrote.

        Args:
            folders: The new checkpoint of each policy.
            figures: Figures of the step.
            keep: Number of checkpoints of each policy to keep.
        """
        self._last = {self._keys[name]: str(folder.absolute()) for name, folder in folders.items()}
        new = list(self._last.values())
        self._saved = [one for one in self._saved if one != new] + [new]
        await self._run.save(self._state(), figures)
        old, self._saved = self._saved[:-keep], self._saved[-keep:]
        folders_of_old = [Path(folder) for one in old for folder in one]
        await anyio.to_thread.run_sync(remove_all, folders_of_old)

    def _state(self) -> dict[str, Any]:
        return {**self._last, _SAVED: self._saved, _OPTIONS: self._options}


def options_of(config: GRPOConfig, tasks: Dataset[Any]) -> dict[str, Any]:
    """Return what the rollouts of a step depend on: with others, a resumed step would mix tasks."""
    return {
        "group_size": config.group_size,
        "tasks_per_step": config.tasks_per_step,
        "seed": config.seed,
        _TASKS: _digest(tasks),
    }


def steps_of(state: Any) -> int:
    """Return the number of steps after which the state of a run was saved."""
    folders = _checkpoints(state or {}).values()
    return min((int(Path(it).name.rpartition("-")[2]) for it in folders), default=0)


def remove_all(folders: Iterable[Path]) -> None:
    """Remove folders; what is no folder, or cannot be removed, is left and logged."""
    for folder in folders:
        if not folder.is_dir():
            if folder.exists():
                logger.info("%s is left: it is no folder", folder)
            continue
        try:
            shutil.rmtree(folder)
        except OSError as error:  # a network file system keeps files that are still open
            logger.warning("%s is left: %s", folder, error)


def _checkpoints(state: Mapping[str, Any]) -> dict[str, str]:
    return {key: folder for key, folder in state.items() if not key.startswith(".")}


def _check_same(began: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    for name, value in began.items():
        if options.get(name, value) == value:
            continue
        if name == _TASKS:
            raise ConfigError(
                "the run began with other tasks: give it the same ones in the same order, or start "
                "a run of another name",
                path="train_dataset",
            )
        raise ConfigError(
            f"the run began with {name}={value}, not {options[name]}: set it back, or start a run "
            "of another name",
            path=f"algorithm.{name}",
        )


def _digest(tasks: Dataset[Any]) -> str:
    stride = max(1, -(-len(tasks) // _DIGESTED))
    digest = hashlib.blake2b(str(len(tasks)).encode(), digest_size=16)
    for i in range(0, len(tasks), stride):
        digest.update(task_digest(tasks[i]).encode())
    return digest.hexdigest()
