"""The baseline under the conformance suite."""

import pytest

from agl_algorithm_kit import Baseline
from agl_testing.algorithm import AlgorithmSuite


class TestBaseline(AlgorithmSuite):
    flags = frozenset({"resources", "no_data", "resumes", "all_tasks"})

    @pytest.fixture
    def algorithm(self):
        return Baseline(span_verbosity="none")
