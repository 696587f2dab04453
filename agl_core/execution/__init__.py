"""Execution strategies: where the algorithm and the runners run, and how they end.

:mod:`agl_core.execution.base` is the contract. The strategies are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core._lazy import lazy_names
from agl_core.execution.base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from agl_core.execution.events import ExecutionEvent, MultiprocessingEvent, ThreadingEvent

if TYPE_CHECKING:
    from agl_core.execution.client_server import ClientServerExecutionStrategy
    from agl_core.execution.shared_memory import SharedMemoryExecutionStrategy

__all__ = [
    "AlgorithmBundle",
    "ClientServerExecutionStrategy",
    "ExecutionEvent",
    "ExecutionStrategy",
    "MultiprocessingEvent",
    "RunnerBundle",
    "SharedMemoryExecutionStrategy",
    "ThreadingEvent",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ClientServerExecutionStrategy": "agl_core.execution.client_server",
        "SharedMemoryExecutionStrategy": "agl_core.execution.shared_memory",
    },
)
