"""Objects that are pickled by value, for processes that do not share memory."""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["CloudPickled"]


class CloudPickled:
    """Pickles its value with cloudpickle, so that code from ``__main__`` reaches a child process.

    A forked child inherits the value; nothing is pickled then.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getstate__(self) -> bytes:
        return cloudpickle.dumps(self.value)  # pyright: ignore[reportUnknownMemberType]

    def __setstate__(self, state: bytes) -> None:
        self.value = pickle.loads(state)  # noqa: S301 - the parent process wrote it
