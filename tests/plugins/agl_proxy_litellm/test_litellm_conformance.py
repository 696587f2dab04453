"""The LiteLLM proxy under the conformance suite."""

import pytest

from agl_proxy_litellm import LiteLLMProxy
from agl_testing import ProxySuite


class TestLiteLLMProxy(ProxySuite):
    flags = frozenset({"streaming", "token_ids", "translation", "balancing"})

    @pytest.fixture
    def make_proxy(self):
        return LiteLLMProxy
