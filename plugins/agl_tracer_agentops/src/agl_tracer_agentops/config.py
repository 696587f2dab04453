"""What the AgentOps tracer can be configured with."""

from __future__ import annotations

from pydantic import Field

from agl_core.tracer import OtelTracerConfig

__all__ = ["AgentOpsTracerConfig"]


class AgentOpsTracerConfig(OtelTracerConfig):
    """See :class:`agl_tracer_agentops.tracer.AgentOpsTracer`."""

    agentops_managed: bool = Field(
        default=True, description="Set the SDK up, without its service; false: the agent does"
    )
    instrument_managed: bool = Field(
        default=True, description="Instrument model libraries and frameworks as they are imported"
    )
    daemon: bool = Field(default=True, description="Without effect; for configurations that set it")
