from .adapter import AdapterSuite as AdapterSuite
from .algorithm import AlgorithmSuite as AlgorithmSuite
from .clock import Clock as Clock
from .environment import EnvironmentSuite as EnvironmentSuite
from .execution import ExecutionSuite as ExecutionSuite
from .llm_server import LLMServerSuite as LLMServerSuite
from .metrics import MetricsSuite as MetricsSuite
from .proxy import ProxySuite as ProxySuite
from .registry import Plugins as Plugins
from .relay import FaultyRelay as FaultyRelay
from .runner import RunnerSuite as RunnerSuite
from .store import StoreSuite as StoreSuite
from .suite import (
    Suite as Suite,
    requires as requires,
    since as since,
)
from .tracer import TracerSuite as TracerSuite
