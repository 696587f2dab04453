"""The AgentOps tracer under the conformance suite."""

from __future__ import annotations

import pytest

from agl_testing import TracerSuite
from agl_tracer_agentops import AgentOpsTracer


class TestAgentOpsTracer(TracerSuite):
    flags = frozenset({"concurrent", "nested"})

    @pytest.fixture
    def tracer(self):
        return AgentOpsTracer(flush_timeout=2.0)
