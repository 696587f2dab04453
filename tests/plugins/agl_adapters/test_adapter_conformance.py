"""Runs the conformance suite on the adapters of agl-adapters."""

import pytest

from agl_adapters import (
    LlmProxyTraceToTriplet,
    TracerTraceToTriplet,
    TraceToMessages,
    is_model_call,
)
from agl_core import semconv
from agl_testing.adapter import AdapterSuite
from agl_testing.traces import trace


class TestTriplets(AdapterSuite):
    flags = frozenset({"triplets", "logprobs"})

    @pytest.fixture
    def adapter(self):
        return TracerTraceToTriplet()


class TestMessages(AdapterSuite):
    flags = frozenset({"messages", "empty"})

    @pytest.fixture
    def adapter(self):
        return TraceToMessages()


class TestProxyTriplets(AdapterSuite):
    flags = frozenset({"triplets", "empty"})

    @pytest.fixture
    def adapter(self):
        return LlmProxyTraceToTriplet()

    @pytest.fixture
    def make_trace(self):
        """A proxy's spans have a name of their own."""

        def made(turns, *, nested=True):
            return [
                span.model_copy(update={"name": semconv.SPAN_MODEL_CALL})
                if is_model_call(span.attributes)
                else span
                for span in trace(turns, nested=nested)
            ]

        return made
