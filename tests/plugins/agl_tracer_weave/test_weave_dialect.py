"""Agent names in Weave's spans, read by the core's adapters."""

from __future__ import annotations

from typing import Any

import pytest

from agl_adapters import TraceTree
from agl_core.types import Span


@pytest.mark.parametrize(
    ("name", "attributes", "agent"),
    [
        ("x", {"agentlightning.operation.input.name": "n", "type": "agent"}, "n"),
        ("x", {"agentlightning.operation.input.name": "n"}, None),
        ("langchain.Chain.invoke", {"lc_name": "LangGraph"}, "LangGraph"),
        ("langchain.Tool.invoke", {"lc_name": "LangGraph"}, None),
    ],
)
def test_the_name_of_an_agent(
    name: str, attributes: dict[str, Any], agent: str | None, agl_registry: Any
) -> None:
    agl_registry.add("dialect.weave", "agl_tracer_weave.hooks")
    span = Span.from_attributes(attributes=attributes, name=name)
    assert TraceTree.from_spans([span]).agent_name() == agent
