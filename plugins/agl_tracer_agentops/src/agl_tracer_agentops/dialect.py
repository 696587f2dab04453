"""The dialect of AgentOps: keys in addition to the GenAI conventions, which the core reads."""

from __future__ import annotations

from typing import Final

from agl_core.adapter import AgentName, Dialect

__all__ = ["AGENTOPS"]

_AGENT: Final = ("agentops.span.kind", "agent")

AGENTOPS: Final = Dialect(
    name="agentops",
    agents=(
        AgentName("operation.name", where=_AGENT),
        AgentName("agent.role", where=_AGENT),  # CrewAI
        AgentName("recipient_agent_type"),  # AutoGen
        AgentName("langchain.chain.type"),
        AgentName("executor.id"),  # Microsoft's agent framework
    ),
)
"""Dialect of spans of agents."""
