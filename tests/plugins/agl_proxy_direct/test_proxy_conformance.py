"""The built-in proxy under the conformance suite."""

import pytest

from agl_proxy_direct import DirectProxy
from agl_testing import ProxySuite


class TestDirectProxy(ProxySuite):
    flags = frozenset(
        {"streaming", "token_ids", "routes", "translation", "balancing", "passthrough"}
    )

    @pytest.fixture
    def make_proxy(self):
        return DirectProxy
