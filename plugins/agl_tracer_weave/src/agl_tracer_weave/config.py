"""Configuration of the Weave tracer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_tracer_otel import OtelTracerConfig

__all__ = ["WeaveTracerConfig"]


class WeaveTracerConfig(OtelTracerConfig):
    """Options of :class:`~agl_tracer_weave.WeaveTracer`."""

    project_name: str | None = None
    """Name of the project in Weave; None makes a random one."""
    weave_user_settings: Mapping[str, Any] | None = None
    """Settings of the SDK; see the parameter ``settings`` of ``weave.init``."""
    instrument_managed: bool = True
    """Have Weave patch the libraries that it knows when they are imported. False: only
    ``@weave.op`` functions are traced, and what the application has patched."""
