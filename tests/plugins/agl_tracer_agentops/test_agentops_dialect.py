"""Agent names in AgentOps' spans, read by the core's adapters."""

from __future__ import annotations

from typing import Any

import pytest

from agl_adapters import TraceTree
from agl_core.types import Span


@pytest.mark.parametrize(
    ("name", "attributes", "agent"),
    [
        ("x", {"agent.name": "writer", "executor.id": "no"}, "writer"),
        ("x", {"operation.name": "op", "agentops.span.kind": "agent"}, "op"),
        ("x", {"operation.name": "op", "agentops.span.kind": "tool"}, None),
        ("x", {"agent.role": "cook", "agentops.span.kind": "agent"}, "cook"),
        ("x", {"recipient_agent_type": "Assistant"}, "Assistant"),
        ("x", {"langchain.chain.type": "RunnableSequence"}, "RunnableSequence"),
        ("x", {"executor.id": "e1"}, "e1"),
    ],
)
def test_the_name_of_an_agent(
    name: str, attributes: dict[str, Any], agent: str | None, agl_registry: Any
) -> None:
    agl_registry.add("dialect.agentops", "agl_tracer_agentops.hooks")
    span = Span.from_attributes(attributes=attributes, name=name)
    assert TraceTree.from_spans([span]).agent_name() == agent
