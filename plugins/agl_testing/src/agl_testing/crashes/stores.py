"""How the processes of a crash test make the store."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from agl_core.store import LightningStore

__all__ = ["StoreSpec"]


class StoreSpec(NamedTuple):
    """A store as its class and its arguments, which have a JSON form."""

    factory: str
    """``module:Class``."""
    options: Mapping[str, Any]

    def make(self) -> LightningStore:
        """Make the store; whoever does closes it."""
        module, _, name = self.factory.partition(":")
        return getattr(import_module(module), name)(**self.options)
