"""The trainer: composes a run from components and runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names
from agl_core.trainer._trainer import Trainer

if TYPE_CHECKING:
    from agl_core.trainer._file import TrainPlan, read_train_file

__all__ = ["TrainPlan", "Trainer", "read_train_file"]

__getattr__, __dir__ = lazy_names(
    __name__, dict.fromkeys(("TrainPlan", "read_train_file"), "agl_core.trainer._file")
)
