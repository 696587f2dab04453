"""Configuration of the AgentOps tracer."""

from __future__ import annotations

from agl_tracer_otel import OtelTracerConfig

__all__ = ["AgentOpsTracerConfig"]


class AgentOpsTracerConfig(OtelTracerConfig):
    """Options of :class:`~agl_tracer_agentops.AgentOpsTracer`."""

    agentops_managed: bool = True
    """Set the SDK up, without its service. False: the application calls ``agentops.init()`` before
    this tracer is initialised, with its own key, and both the service and the tracer record."""
    instrument_managed: bool = True
    """Instrument model clients and frameworks when they are imported. False: the application does
    it."""
    daemon: bool = True
    """Has no effect; accepted for configurations of agent-lightning that set it."""
