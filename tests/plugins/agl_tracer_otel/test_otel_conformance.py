"""The OpenTelemetry tracer under the conformance suite."""

import pytest

from agl_testing.tracer import TracerSuite
from agl_tracer_otel import OtelTracer


class TestOtelTracer(TracerSuite):
    flags = frozenset({"concurrent", "nested", "threads", "opentelemetry"})

    @pytest.fixture
    def tracer(self):
        return OtelTracer(flush_timeout=2.0)
