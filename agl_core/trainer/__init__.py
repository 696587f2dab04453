"""The trainer: composes a run from components and runs it."""

from agl_core.trainer._components import default_strategy
from agl_core.trainer._datasets import check_dataset
from agl_core.trainer._trainer import Trainer
from agl_core.trainer._verdict import failure_cause

__all__ = ["Trainer", "check_dataset", "default_strategy", "failure_cause"]
