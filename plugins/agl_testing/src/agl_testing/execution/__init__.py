"""The conformance suite for execution strategies.

::

    class TestMyStrategy(ExecutionSuite):
        @pytest.fixture
        def make_strategy(self):
            return lambda **options: MyStrategy(**options)
"""

from agl_testing.execution.base import ExecutionTests
from agl_testing.execution.endings import EndingTests, LeftoverTests
from agl_testing.execution.faults import FaultTests
from agl_testing.execution.runs import RunTests

__all__ = ["ExecutionSuite", "ExecutionTests"]


class ExecutionSuite(RunTests, EndingTests, FaultTests, LeftoverTests):
    """Tests the contract of execution strategies; see :class:`ExecutionTests`."""
