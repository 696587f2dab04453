"""The conformance suite for runners.

::

    class TestMyRunner(RunnerSuite):
        @pytest.fixture
        def runner(self):
            return MyRunner(heartbeat_interval=0.1)
"""

from agl_testing.runner.base import RunnerTests
from agl_testing.runner.calls import CallTests
from agl_testing.runner.endings import EndingTests
from agl_testing.runner.runs import RunTests

__all__ = ["RunnerSuite", "RunnerTests"]


class RunnerSuite(RunTests, CallTests, EndingTests):
    """Tests the contract of runners; see :class:`RunnerTests`."""
