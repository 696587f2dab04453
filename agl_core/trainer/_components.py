"""Checks of a trainer's arguments that no component contract makes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from agl_core.errors import ConfigError
from agl_core.plugins import get_registry
from agl_core.runner import Hook
from agl_core.types import Dataset

__all__ = ["check_dataset", "default_strategy", "deprecated", "hooks_of"]

T = TypeVar("T")


def default_strategy() -> str:
    """Return the strategy of a trainer that names none: ``cs`` where installed, else ``shm``."""
    installed = {record.name for record in get_registry().usable("execution")}
    return "cs" if "cs" in installed else "shm"


def hooks_of(hooks: Hook | Sequence[Hook] | None) -> tuple[Hook, ...]:
    """Return the hooks as a tuple, whether none, one or several were given.

    Raises:
        ConfigError: One of them is no hook.
    """
    if hooks is None:
        return ()
    given = (hooks,) if isinstance(hooks, Hook) else tuple(hooks)
    for hook in cast("tuple[object, ...]", given):
        if not isinstance(hook, Hook):
            raise ConfigError(f"{hook!r} is no Hook; derive it from agl_core.Hook", path="hooks")
    return given


def check_dataset(name: str, dataset: Any) -> Dataset[Any] | None:
    """Return the dataset if it is one.

    Raises:
        ConfigError: It has no length or no items by index.
    """
    if dataset is None:
        return None
    if isinstance(dataset, (str, bytes, dict)) or not isinstance(dataset, Dataset):
        kind = type(cast("object", dataset)).__qualname__
        raise ConfigError(
            f"a {kind} is no dataset; it needs a length and items by index, as a list has",
            path=name,
        )
    return cast("Dataset[Any]", dataset)


def deprecated(old: str, value: T | None, new: str, current: T | None) -> T | None:
    """Return the value of an argument that has an old name and a new one; the new one wins."""
    if value is None:
        return current
    warnings.warn(f"{old} is deprecated; use {new}", DeprecationWarning, stacklevel=3)
    return value if current is None else current
