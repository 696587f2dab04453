"""Runs the conformance suite on the built-in adapters."""

import pytest

from agl_core.adapter import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToMessages
from agl_testing.adapter import AdapterSuite


class TestTriplets(AdapterSuite):
    flags = frozenset({"triplets"})

    @pytest.fixture
    def adapter(self):
        return TracerTraceToTriplet()


class TestMessages(AdapterSuite):
    flags = frozenset({"messages", "empty"})

    @pytest.fixture
    def adapter(self):
        return TraceToMessages()


class TestProxyTriplets(AdapterSuite):
    flags = frozenset({"empty"})

    @pytest.fixture
    def adapter(self):
        return LlmProxyTraceToTriplet()
