"""The strategy for Ray under the conformance suite, on a real cluster."""

from typing import Any

import pytest

from agl_exec_ray import RayExecutionStrategy
from agl_testing.execution import ExecutionSuite


class TestRay(ExecutionSuite):
    flags = frozenset({"fails_open_attempts"})
    patience = 100.0  # an actor takes up to 20 s to start beside other tests

    @pytest.fixture
    def make_strategy(self, cluster: Any):
        return lambda n_runners: RayExecutionStrategy(
            n_runners=n_runners, num_cpus=0.5, graceful_timeout=1, terminate_timeout=5
        )
