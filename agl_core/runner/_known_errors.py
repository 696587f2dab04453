"""Which errors of agents have their traceback in the log: one of a kind is enough."""

from __future__ import annotations

import hashlib
import threading
import traceback
from collections.abc import MutableSequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Final, Protocol

ERROR_KINDS: Final = 64
"""Kinds of errors that are told apart; later kinds are logged without a traceback."""
_LOCK_SECONDS: Final = 1.0  # a process that was killed keeps a shared lock for ever
_OWN: Final = str(Path(__file__).parents[1])


class Lock(Protocol):
    """A lock of :mod:`threading` or :mod:`multiprocessing`."""

    def acquire(self, *, timeout: float) -> bool: ...
    def release(self) -> None: ...


class KnownErrors:
    """The errors of one run; thread-safe. A pickled copy is empty.

    Args:
        kinds: :data:`ERROR_KINDS` unsigned 64-bit numbers, at first 0.
        lock: Guards them.
    """

    shared: ClassVar[KnownErrors | None] = None
    """Those of the runner processes of this machine, if there are several."""

    def __init__(self, kinds: MutableSequence[int] | None = None, lock: Lock | None = None) -> None:
        self._kinds = [0] * ERROR_KINDS if kinds is None else kinds
        self._lock: Any = lock or threading.Lock()

    def __reduce__(self) -> tuple[type[KnownErrors], tuple[()]]:
        return KnownErrors, ()

    def add(self, error: BaseException) -> bool:
        """Return whether no error of this type was raised at this place before."""
        frames = traceback.extract_tb(error.__traceback__)
        place = (frames[-1].filename, frames[-1].lineno) if frames else ()
        text = repr((type(error).__name__, place))
        kind = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) or 1
        held = self._lock.acquire(timeout=_LOCK_SECONDS)
        try:
            for index, known in enumerate(self._kinds):
                if known in (0, kind):
                    self._kinds[index] = kind
                    return known == 0
            return False
        finally:
            if held:
                self._lock.release()


def without_own_frames(
    error: BaseException,
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return what the log needs to show a traceback that begins in the agent's code."""
    begin = error.__traceback__
    while begin is not None and begin.tb_frame.f_code.co_filename.startswith(_OWN):
        begin = begin.tb_next
    return type(error), error, begin or error.__traceback__
