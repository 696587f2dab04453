"""The conformance suite for tracers.

::

    class TestMyTracer(TracerSuite):
        @pytest.fixture
        def tracer(self):
            return MyTracer()
"""

from agl_testing.tracer.base import TracerTests
from agl_testing.tracer.contexts import ContextTests
from agl_testing.tracer.delivery import DeliveryTests
from agl_testing.tracer.endings import EndingTests
from agl_testing.tracer.lifecycle import LifecycleTests
from agl_testing.tracer.opentelemetry import OpenTelemetryTests
from agl_testing.tracer.spans import SpanTests

__all__ = ["TracerSuite", "TracerTests"]


class TracerSuite(
    LifecycleTests, ContextTests, SpanTests, DeliveryTests, EndingTests, OpenTelemetryTests
):
    """Tests the contract of tracers; see :class:`TracerTests`."""
