"""Conformance suites for agl plugins, one per kind, and the helpers their tests need.

Subclass the suite of your component's kind in a test module, supply its fixture, state in ``flags``
what the component claims, and run pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_scripted import Reply, ScriptedModels, ToolCall
    from agl_testing.adapter import AdapterSuite
    from agl_testing.algorithm import AlgorithmSuite
    from agl_testing.clock import Clock
    from agl_testing.environment import EnvironmentSuite
    from agl_testing.execution import ExecutionSuite
    from agl_testing.llm_server import LLMServerSuite
    from agl_testing.metrics import MetricsSuite
    from agl_testing.proxy import ProxySuite
    from agl_testing.registry import Plugins
    from agl_testing.relay import FaultyRelay
    from agl_testing.runner import RunnerSuite
    from agl_testing.store import StoreSuite
    from agl_testing.suite import Suite, requires, since
    from agl_testing.tracer import TracerSuite

__all__ = [
    "AdapterSuite",
    "AlgorithmSuite",
    "Clock",
    "EnvironmentSuite",
    "ExecutionSuite",
    "FaultyRelay",
    "LLMServerSuite",
    "MetricsSuite",
    "Plugins",
    "ProxySuite",
    "Reply",
    "RunnerSuite",
    "ScriptedModels",
    "StoreSuite",
    "Suite",
    "ToolCall",
    "TracerSuite",
    "requires",
    "since",
]

# Importing all of them takes half a second, which a script that needs one helper can save.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "AdapterSuite": "agl_testing.adapter",
        "AlgorithmSuite": "agl_testing.algorithm",
        "Clock": "agl_testing.clock",
        "EnvironmentSuite": "agl_testing.environment",
        "ExecutionSuite": "agl_testing.execution",
        "FaultyRelay": "agl_testing.relay",
        "LLMServerSuite": "agl_testing.llm_server",
        "MetricsSuite": "agl_testing.metrics",
        "Plugins": "agl_testing.registry",
        "ProxySuite": "agl_testing.proxy",
        "Reply": "agl_scripted",
        "RunnerSuite": "agl_testing.runner",
        "ScriptedModels": "agl_scripted",
        "StoreSuite": "agl_testing.store",
        "Suite": "agl_testing.suite",
        "ToolCall": "agl_scripted",
        "TracerSuite": "agl_testing.tracer",
        "requires": "agl_testing.suite",
        "since": "agl_testing.suite",
    },
)
