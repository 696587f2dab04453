"""Traces agents with the AgentOps SDK's instrumentation, without its service."""

from agl_tracer_agentops.config import AgentOpsTracerConfig
from agl_tracer_agentops.tracer import AgentOpsTracer

__all__ = ["AgentOpsTracer", "AgentOpsTracerConfig"]
