"""The memory store: the engine on a backend in memory."""

from __future__ import annotations

from collections.abc import Callable

from agl_core.store._engine import EngineStore
from agl_core.store._memory.backend import MemoryBackend
from agl_core.store._memory.eviction import MemoryBudget, memory_capacity
from agl_core.types import Span

__all__ = ["InMemoryLightningStore"]


class InMemoryLightningStore(EngineStore):
    """Keeps all data in this process's memory; the data ends with the process.

    Safe for any number of threads, each with its own event loop, and for several loops in
    succession. A call blocks at most while another call is in its critical section.

    When spans take more memory than ``eviction_memory_threshold``, those of whole rollouts are
    dropped, finished ones first and oldest first, until they take
    ``safe_memory_threshold`` or less.

    Args:
        thread_safe: Value of the capability ``thread_safe``; the store is thread-safe anyway.
        eviction_memory_threshold: A ratio of the machine's memory (a float in (0, 1]) or bytes (an
            int); None means 0.7.
        safe_memory_threshold: A ratio (a float in [0, 1]) or bytes; None means 80 % of the
            eviction threshold.
        span_size_estimator: Returns a span's size in bytes; None estimates it from its text. With
            a function, every span that was added as bytes is decoded once more.
        scan_debounce_seconds: Shortest time between two scans of the watchdog; 0 scans at every
            call whose result it may change.

    Raises:
        InvalidArgumentError: A threshold is out of range, or safe is not below eviction.
    """

    _backend: MemoryBackend  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        *,
        thread_safe: bool = True,
        eviction_memory_threshold: float | int | None = None,
        safe_memory_threshold: float | int | None = None,
        span_size_estimator: Callable[[Span], int] | None = None,
        scan_debounce_seconds: float = 10.0,
    ) -> None:
        budget = MemoryBudget(
            eviction_memory_threshold,
            safe_memory_threshold,
            span_size_estimator,
            memory_capacity(),
        )
        super().__init__(
            MemoryBackend(budget, thread_safe=thread_safe),
            scan_debounce_seconds=scan_debounce_seconds,
        )
