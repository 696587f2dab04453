"""Conformance suites for agl plugins, one per kind, and the helpers their tests need.

Subclass the suite of your component's kind in a test module, supply its fixture, state in ``flags``
what the component claims, and run pytest.
"""

from agl_testing.adapter import AdapterSuite
from agl_testing.algorithm import AlgorithmSuite
from agl_testing.clock import Clock
from agl_testing.execution import ExecutionSuite
from agl_testing.llm_server import LLMServerSuite
from agl_testing.metrics import MetricsSuite
from agl_testing.models import Reply, ScriptedModels, ToolCall
from agl_testing.proxy import ProxySuite
from agl_testing.registry import Plugins
from agl_testing.relay import FaultyRelay
from agl_testing.store import StoreSuite
from agl_testing.suite import Suite, requires, since
from agl_testing.tracer import TracerSuite

__all__ = [
    "AdapterSuite",
    "AlgorithmSuite",
    "Clock",
    "ExecutionSuite",
    "FaultyRelay",
    "LLMServerSuite",
    "MetricsSuite",
    "Plugins",
    "ProxySuite",
    "Reply",
    "ScriptedModels",
    "StoreSuite",
    "Suite",
    "ToolCall",
    "TracerSuite",
    "requires",
    "since",
]
