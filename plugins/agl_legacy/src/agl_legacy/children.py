"""Passes the compatibility import on to processes that multiprocessing spawns.

A forked child has its parent's finders. One that is spawned, or forked from the fork server, starts
with none and imports the main script before it runs anything else. The first thing that it reads is
the preparation data of :mod:`multiprocessing.spawn`; reading the extra entry in it installs the
import.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import spawn
from typing import Any, Final

__all__ = ["share_with_children", "stop_sharing"]

_ENTRY: Final = "agl_legacy"
_FORK_SERVER: Final = "ignore"
"""Name that :mod:`multiprocessing.forkserver` asks with."""
_original: Final = spawn.get_preparation_data


class _CallWhenRead:
    """Calls a function of a module in the process that unpickles it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return self._function, ()


def share_with_children(install: Callable[[], None]) -> None:
    """Call ``install`` at the start of every process that multiprocessing starts from here."""

    def get_preparation_data(name: str) -> dict[str, Any]:
        data = {**_original(name), _ENTRY: _CallWhenRead(install)}
        if name == _FORK_SERVER:
            # Newer versions of Python import the main script in the fork server, which reads no
            # entry and so lacks the import. Its children read one and import the script.
            data.pop("init_main_from_path", None)
        return data

    spawn.get_preparation_data = get_preparation_data


def stop_sharing() -> None:
    """Undo :func:`share_with_children`. Idempotent."""
    spawn.get_preparation_data = _original
