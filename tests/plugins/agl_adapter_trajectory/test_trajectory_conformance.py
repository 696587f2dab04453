"""Runs the conformance suite on the trajectory adapter."""

import pytest

from agl_adapter_trajectory import TraceToTrajectory
from agl_testing.adapter import AdapterSuite


class TestTrajectories(AdapterSuite):
    flags = frozenset({"rows"})

    @pytest.fixture
    def adapter(self):
        return TraceToTrajectory()
