"""Traces agents with the Weave SDK, without its service."""

from agl_tracer_weave.config import WeaveTracerConfig
from agl_tracer_weave.tracer import WeaveTracer

__all__ = ["WeaveTracer", "WeaveTracerConfig"]
