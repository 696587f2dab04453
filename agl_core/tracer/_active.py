"""Which tracer the running code reports to.

The active tracer belongs to a context, in the sense of :mod:`contextvars`: each task and each
thread has its own, and tasks inherit that of their creator. So any number of rollouts run in one
process without interference. A trace context makes its tracer the active one and restores the
previous one at its end, so trace contexts nest. Within a nested one, emitters and model calls
report to its tracer alone, also if it is of another kind.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from agl_core.tracer._base import Tracer

_active: Final[ContextVar[Tracer | None]] = ContextVar("agl_active_tracer", default=None)


def get_active_tracer() -> Tracer | None:
    """Return the tracer of the running context, or None if there is none."""
    return _active.get()


def set_active_tracer(tracer: Tracer) -> None:
    """Make ``tracer`` the active one of the running context, until it is cleared.

    Agents never need this: the trace context that the runner opens does it.

    Raises:
        ValueError: The running context has an active tracer already.
    """
    current = _active.get()
    if current is not None:
        raise ValueError(
            f"{type(current).__name__} is the active tracer of this context; "
            "call clear_active_tracer() before setting another"
        )
    _active.set(tracer)


def clear_active_tracer() -> None:
    """Leave the running context without an active tracer. Idempotent."""
    _active.set(None)


@contextmanager
def activate(tracer: Tracer | None) -> Generator[None]:
    """Make a tracer, or none, the active one of a ``with`` block, and restore the previous one."""
    previous = _active.get()
    _active.set(tracer)
    try:
        yield
    finally:
        # Without a token: a block may be left in another context than it was entered in (an exit
        # stack closed by another task), where resetting by token raises.
        _active.set(previous)
