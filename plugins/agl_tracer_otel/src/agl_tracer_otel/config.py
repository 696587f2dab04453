"""Options of the tracer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from agl_core.plugins import ComponentConfig


class OtelTracerConfig(ComponentConfig):
    """Options of :class:`~agl_tracer_otel.OtelTracer`."""

    model_calls: bool | Literal["direct"] = True
    """Whether calls of the OpenAI and Anthropic clients are recorded as spans; ``"direct"`` leaves
    out those that a proxy of this framework records, which cost twice the time otherwise."""
    instrument: Literal["auto"] | Sequence[str] | None = None
    """Further instrumentation libraries, active from the first ``init_worker`` to the last
    ``teardown_worker``: names of ``opentelemetry_instrumentor`` entry points, ``"auto"`` for every
    installed one, None for none. A library named here replaces the tracer's own recording of the
    same client; ``"auto"`` leaves out those that would repeat it."""
    max_buffered: int = Field(default=10_000, ge=1)
    """Largest number of spans per trace that wait for the store; beyond it the agent waits."""
    max_wait: float = Field(default=10.0, ge=0)
    """Longest wait of the agent while the buffer is full, in seconds; then the trace is given
    up."""
    flush_timeout: float = Field(default=30.0, gt=0)
    """Longest wait for the store at the end of a trace, in seconds."""
    follow_threads: bool = True
    """Whether spans of threads that an agent starts belong to its trace. A thread keeps the trace
    in which it was started, so work that a later trace gives to it is recorded only through a
    ``ThreadPoolExecutor``."""
