"""Execution strategies: where the algorithm and the runners run, and how they end.

:mod:`agl_core.execution._base` is the contract. The building blocks of strategies are imported at
first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agl_core.execution._base import (
    RUN_ENDED,
    AlgorithmBundle,
    ExecutionStrategy,
    RunnerBundle,
    keep_watch,
)
from agl_core.lazy import lazy_names
from agl_core.types import ExecutionEvent

if TYPE_CHECKING:
    from agl_core.execution._claims import ClaimTracker
    from agl_core.execution._ctrl_c import CtrlC
    from agl_core.execution._events import ThreadingEvent
    from agl_core.execution._supervise import BundleThread, supervise

__all__ = [
    "RUN_ENDED",
    "AlgorithmBundle",
    "BundleThread",
    "ClaimTracker",
    "CtrlC",
    "ExecutionEvent",
    "ExecutionStrategy",
    "RunnerBundle",
    "ThreadingEvent",
    "keep_watch",
    "supervise",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BundleThread": "agl_core.execution._supervise",
        "ClaimTracker": "agl_core.execution._claims",
        "CtrlC": "agl_core.execution._ctrl_c",
        "ThreadingEvent": "agl_core.execution._events",
        "supervise": "agl_core.execution._supervise",
    },
)
