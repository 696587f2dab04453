"""The trainer: composes a run from components and runs it."""

from agl_core.trainer._trainer import Trainer

__all__ = ["Trainer"]
