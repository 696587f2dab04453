"""The dialect of Weave's integrations; calls themselves use the keys of the core's operations."""

from __future__ import annotations

from typing import Final

from agl_core import semconv
from agl_core.adapter import AgentName, Dialect

__all__ = ["WEAVE"]

WEAVE: Final = Dialect(
    name="weave",
    agents=(
        AgentName(f"{semconv.OPERATION_INPUT}.name", where=("type", "agent")),
        AgentName("lc_name", span_name="langchain.Chain."),
    ),
)
"""Dialect of spans of agents."""
