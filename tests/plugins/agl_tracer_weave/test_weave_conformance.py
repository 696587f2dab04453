"""The Weave tracer under the conformance suite."""

from __future__ import annotations

import pytest

from agl_testing import TracerSuite
from agl_tracer_weave import WeaveTracer


class TestWeaveTracer(TracerSuite):
    flags = frozenset({"concurrent", "nested"})

    @pytest.fixture
    def tracer(self):
        return WeaveTracer(flush_timeout=2.0)
