"""Execution strategies: where the algorithm and the runners run, and how they end.

:mod:`agl_core.execution._base` is the contract. The strategies are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.execution._base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from agl_core.execution._events import ExecutionEvent, MultiprocessingEvent, ThreadingEvent
from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_core.execution._config import SharedMemoryConfig
    from agl_core.execution._shared_memory import SharedMemoryExecutionStrategy

__all__ = [
    "AlgorithmBundle",
    "ExecutionEvent",
    "ExecutionStrategy",
    "MultiprocessingEvent",
    "RunnerBundle",
    "SharedMemoryConfig",
    "SharedMemoryExecutionStrategy",
    "ThreadingEvent",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "SharedMemoryConfig": "agl_core.execution._config",
        "SharedMemoryExecutionStrategy": "agl_core.execution._shared_memory",
    },
)
