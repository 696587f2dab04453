"""The conformance suite for algorithms.

::

    class TestMyAlgorithm(AlgorithmSuite):
        flags = frozenset({"resources"})

        @pytest.fixture
        def algorithm(self):
            return MyAlgorithm(rounds=1)
"""

from agl_testing.algorithm.base import AlgorithmTests
from agl_testing.algorithm.interrupts import InterruptTests
from agl_testing.algorithm.results import ResultTests
from agl_testing.algorithm.runs import RunTests

__all__ = ["AlgorithmSuite", "AlgorithmTests"]


class AlgorithmSuite(RunTests, ResultTests, InterruptTests):
    """Tests the contract of algorithms; see :class:`AlgorithmTests`."""
