"""The runner of agents under the conformance suite."""

import pytest

from agl_core.runner import LitAgentRunner
from agl_core.tracer import OtelTracer
from agl_testing import RunnerSuite


class TestLitAgentRunner(RunnerSuite):
    @pytest.fixture
    def runner(self):
        return LitAgentRunner(
            OtelTracer(), concurrency=1, heartbeat_interval=0.05, interval_jitter=0
        )
