"""The conformance suite for runners.

::

    class TestMyRunner(RunnerSuite):
        @pytest.fixture
        def runner(self):
            return MyRunner(heartbeat_interval=0.1)
"""

from agl_testing.runner.base import RunnerTests
from agl_testing.runner.runs import RunTests

__all__ = ["RunnerSuite", "RunnerTests"]


class RunnerSuite(RunTests):
    """Tests the contract of runners; see :class:`RunnerTests`."""
