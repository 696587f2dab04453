"""The proxy in a process of its own under the conformance tests of what crosses to its parent.

The other tests of the suite check the application, which is the same in every mode. Slow, since
every test starts a process; ``test_own_process.py`` has what a default run checks.
"""

import pytest

from agl_proxy_direct import DirectProxy
from agl_testing.proxy.calls import CallTests
from agl_testing.proxy.control import ControlTests, LifecycleTests
from agl_testing.proxy.storage import StoreFaultTests


@pytest.mark.slow
class TestDirectProxyInItsOwnProcess(LifecycleTests, CallTests, StoreFaultTests, ControlTests):
    flags = frozenset(
        {"streaming", "token_ids", "routes", "translation", "balancing", "passthrough"}
    )

    @pytest.fixture
    def make_proxy(self):
        return lambda **options: DirectProxy(**options, launch_mode="mp")
