"""The trainer: composes a run from components and runs it."""

from agl_core.trainer.trainer import Trainer

__all__ = ["Trainer"]
