"""Specifies a store, so that the processes of a crash test can build it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from agl_core.store import LightningStore

__all__ = ["StoreSpec"]


class StoreSpec(NamedTuple):
    """The class and the arguments of a store, in a form that JSON can carry."""

    factory: str
    """``module:Class``."""
    options: Mapping[str, Any]

    def make(self) -> LightningStore:
        """Build the store; the caller closes it."""
        module, _, name = self.factory.partition(":")
        return getattr(import_module(module), name)(**self.options)
