"""Options of the tracer."""

from __future__ import annotations

from agl_core.plugins import ComponentConfig


class DummyTracerConfig(ComponentConfig):
    """:class:`~agl_tracer_dummy.DummyTracer` has no options."""
