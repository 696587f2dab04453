"""The runner of agents under the conformance suite."""

import pytest

from agl_runner import LitAgentRunner
from agl_testing import RunnerSuite
from agl_tracer_otel import OtelTracer


class TestLitAgentRunner(RunnerSuite):
    @pytest.fixture
    def runner(self):
        return LitAgentRunner(
            OtelTracer(), concurrency=1, heartbeat_interval=0.05, interval_jitter=0
        )
