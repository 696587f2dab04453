"""Traces agents with the Weave SDK's instrumentation, without its service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_tracer_weave.config import WeaveTracerConfig
    from agl_tracer_weave.tracer import WeaveTracer

__all__ = ["WeaveTracer", "WeaveTracerConfig"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "WeaveTracer": "agl_tracer_weave.tracer",
        "WeaveTracerConfig": "agl_tracer_weave.config",
    },
)
