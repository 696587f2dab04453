"""What the Weave tracer can be configured with."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from agl_core.tracer import OtelTracerConfig

__all__ = ["WeaveTracerConfig"]


class WeaveTracerConfig(OtelTracerConfig):
    """See :class:`agl_tracer_weave.tracer.WeaveTracer`."""

    project_name: str | None = Field(
        default=None, description="What Weave calls the project; null: a random name"
    )
    weave_user_settings: dict[str, Any] | None = Field(
        default=None, description="Settings of the SDK, as weave.init() takes them"
    )
    instrument_managed: bool = Field(
        default=True, description="Have Weave patch the libraries it knows as they are imported"
    )
