"""Every framework under AgentOps, under OpenTelemetry's instrumentations, and behind the proxy."""

from __future__ import annotations

import pytest
from framework_harness import FRAMEWORKS, load, observe
from framework_table import cell, check_or_write

from agl_core.tracer import Tracer
from agl_tracer_agentops import AgentOpsTracer
from agl_tracer_otel import OtelTracer

pytestmark = [
    pytest.mark.heavy,
    # Frameworks warn about their own dependencies, which this project cannot change.
    pytest.mark.filterwarnings("ignore"),
]

OPENLLMETRY = [
    f"opentelemetry-instrumentation-{dist}:{name}"
    for dist, name in (
        ("anthropic", "anthropic"),
        ("langchain", "langchain"),
        ("openai", "openai"),
        ("openai-agents", "openai_agents"),
    )
]


def tracer_of(column: str) -> Tracer:
    if column == "agentops":
        return AgentOpsTracer()
    if column == "openllmetry":
        return OtelTracer(instrument=OPENLLMETRY)
    return OtelTracer(instrument=None if column == "proxy" else "auto")


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("column", ["agentops", "otel", "openllmetry", "proxy", "otel+proxy"])
async def test_a_framework_is_traced_as_the_table_says(framework: str, column: str):
    found = await observe(
        framework,
        tracer_of(column),
        proxied="proxy" in column,
        only_proxy=column == "proxy",
    )
    assert found.answers == ["It is sunny.", "It is rain."]
    check_or_write({(framework, column): cell(found)})
    if column == "agentops" and framework != "plain_http":
        # The recorded parents are right without the adapter's repair by time.
        assert found.agents_as_recorded() == [load(framework).AGENT or "*"] * 4
