"""Tracers: they record the run of an agent as spans. The tracers themselves are plugins."""

from agl_core.tracer._active import (
    activate,
    clear_active_tracer,
    get_active_tracer,
    set_active_tracer,
)
from agl_core.tracer._base import Tracer
from agl_core.tracer._unsent import UnsentSpans

__all__ = [
    "Tracer",
    "UnsentSpans",
    "activate",
    "clear_active_tracer",
    "get_active_tracer",
    "set_active_tracer",
]
