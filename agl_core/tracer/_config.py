"""What the built-in tracers can be configured with."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["DummyTracerConfig", "OtelTracerConfig"]


class OtelTracerConfig(BaseModel):
    """Configuration of the tracer ``otel``; see :class:`agl_core.tracer._otel.OtelTracer`."""

    model_config = ConfigDict(extra="forbid")

    instrument: Literal["auto"] | list[str] | None = Field(
        default=None,
        description="Instrumentation libraries to activate: entry point names, or all of them",
    )
    max_buffered: int = Field(
        default=10_000, ge=1, description="Spans per trace that may wait for the store"
    )
    max_wait: float = Field(
        default=10.0, ge=0, description="Seconds that a full buffer stops the agent"
    )
    flush_timeout: float = Field(
        default=30.0, gt=0, description="Seconds that the end of a trace waits for the store"
    )
    follow_threads: bool = Field(
        default=True, description="Let threads that an agent starts belong to its trace"
    )


class DummyTracerConfig(BaseModel):
    """Configuration of the tracer ``dummy``: there is nothing to configure."""

    model_config = ConfigDict(extra="forbid")
