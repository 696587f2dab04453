"""Looks up the tracer that receives emitted spans, when an emitter is called."""

from __future__ import annotations

from typing import Final

from agl_core.errors import TracerError
from agl_core.tracer._active import get_active_tracer
from agl_core.tracer._base import Tracer
from agl_core.tracer._unsent import UnsentSpans

_nowhere: Final = UnsentSpans()


def tracer_for(propagate: bool) -> Tracer:
    """Return the active tracer; with ``propagate`` off, a tracer that stores nothing.

    Raises:
        TracerError: There is no active tracer (a ``RuntimeError``).
    """
    if not propagate:
        return _nowhere
    tracer = get_active_tracer()
    if tracer is None:
        raise TracerError(
            "no tracer is active here: call this from within a rollout, or pass propagate=False; "
            "a thread of your own needs the rollout's context "
            "(contextvars.copy_context().run, or asyncio.to_thread)"
        )
    return tracer
