"""The OpenTelemetry tracer under the conformance suite."""

import pytest

from agl_core.tracer import OtelTracer
from agl_testing.tracer import TracerSuite


class TestOtelTracer(TracerSuite):
    flags = frozenset({"concurrent", "nested", "threads", "opentelemetry"})

    @pytest.fixture
    def tracer(self):
        return OtelTracer(flush_timeout=2.0)
