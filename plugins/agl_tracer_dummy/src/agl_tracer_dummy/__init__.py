"""A tracer that records nothing: only what an agent returns is stored."""

from agl_tracer_dummy.config import DummyTracerConfig
from agl_tracer_dummy.tracer import DummyTracer

__all__ = ["DummyTracer", "DummyTracerConfig"]
