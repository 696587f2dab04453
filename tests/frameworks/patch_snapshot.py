"""Snapshots of the attributes of installed libraries, compared before and after a training."""

from __future__ import annotations

import builtins
import sys
from typing import Any

__all__ = ["changes", "snapshot"]


def snapshot(*packages: str) -> dict[str, Any]:
    """Return every attribute of the loaded modules of packages and of their classes, by path.

    The snapshot holds the values, so that a replaced object is detected. Caches that libraries fill
    themselves (private ones, lazily imported names) are left out.
    """
    found: dict[str, Any] = {
        "builtins.__import__": builtins.__import__,
        **{f"sys.meta_path.{index}": finder for index, finder in enumerate(sys.meta_path)},
    }
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] not in packages or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value):
                found[f"{name}.{attribute}"] = value
            if isinstance(value, type) and value.__module__ == name:
                for member, inner in vars(value).items():
                    if callable(inner) or isinstance(inner, (staticmethod, classmethod)):
                        found[f"{name}.{attribute}.{member}"] = inner
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the paths whose values have changed; new paths do not count."""
    return [
        path for path, value in before.items() if path not in after or after[path] is not value
    ] + [path for path in after if path not in before and path.rpartition(".")[0] in before]
