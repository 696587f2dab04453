"""The conformance suite for LLM proxies.

::

    class TestMyProxy(ProxySuite):
        flags = frozenset({"streaming", "token_ids"})

        @pytest.fixture
        def make_proxy(self):
            return lambda **options: MyProxy(**options)
"""

from agl_testing.proxy.answers import AnswerTests, RouteTests
from agl_testing.proxy.backends import BackendTests, BalancingTests
from agl_testing.proxy.calls import CallTests, StreamTests
from agl_testing.proxy.control import ControlTests, LifecycleTests
from agl_testing.proxy.faults import BackendFaultTests
from agl_testing.proxy.passthrough import PassthroughTests
from agl_testing.proxy.protocols import ProtocolTests
from agl_testing.proxy.records import RecordTests
from agl_testing.proxy.storage import StoreFaultTests
from agl_testing.proxy.stores import TroubledStore

__all__ = ["ProxySuite", "TroubledStore"]


class ProxySuite(
    LifecycleTests,
    CallTests,
    AnswerTests,
    StreamTests,
    RouteTests,
    ProtocolTests,
    RecordTests,
    PassthroughTests,
    BackendTests,
    BalancingTests,
    BackendFaultTests,
    StoreFaultTests,
    ControlTests,
):
    """Tests the contract of LLM proxies; see :class:`agl_testing.proxy.base.ProxyTests`."""
