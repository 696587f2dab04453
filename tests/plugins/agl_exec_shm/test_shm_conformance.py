"""The built-in strategies under the conformance suite."""

import pytest

from agl_exec_cs import ClientServerExecutionStrategy
from agl_exec_shm import SharedMemoryExecutionStrategy
from agl_testing.execution import ExecutionSuite


class TestSharedMemory(ExecutionSuite):
    flags = frozenset({"fails_open_attempts", "watchdog"})

    @pytest.fixture
    def make_strategy(self):
        return lambda n_runners: SharedMemoryExecutionStrategy(
            n_runners=n_runners, graceful_delay=0.5, join_timeout=5
        )


class TestClientServer(ExecutionSuite):
    flags = frozenset({"fails_open_attempts"})

    @pytest.fixture
    def make_strategy(self):
        return lambda n_runners: ClientServerExecutionStrategy(
            n_runners=n_runners, server_port=0, graceful_timeout=1, terminate_timeout=1
        )
