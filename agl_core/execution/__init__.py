"""Execution strategies: where the algorithm and the runners run, and how they end.

:mod:`agl_core.execution.base` is the contract. The strategies are imported at first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

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

_LAZY: Final = {
    "ClientServerExecutionStrategy": "agl_core.execution.client_server",
    "SharedMemoryExecutionStrategy": "agl_core.execution.shared_memory",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
