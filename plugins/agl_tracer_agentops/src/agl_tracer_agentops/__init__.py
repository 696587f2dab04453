"""Traces agents with the AgentOps SDK's instrumentation, without its service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_tracer_agentops.config import AgentOpsTracerConfig
    from agl_tracer_agentops.tracer import AgentOpsTracer

__all__ = ["AgentOpsTracer", "AgentOpsTracerConfig"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AgentOpsTracer": "agl_tracer_agentops.tracer",
        "AgentOpsTracerConfig": "agl_tracer_agentops.config",
    },
)
