"""The memory store: the engine on a backend in memory."""

from __future__ import annotations

from agl_core.plugins import configured_by
from agl_store_kit.engine import EngineStore
from agl_store_memory.backend import MemoryBackend
from agl_store_memory.config import MemoryStoreConfig
from agl_store_memory.eviction import MemoryBudget, memory_capacity


class InMemoryLightningStore(EngineStore):
    """Keeps all data in this process's memory; the data ends with the process.

    Safe for any number of threads, each with its own event loop, and for several loops in
    succession. A call blocks at most while another call is in its critical section.

    When spans take more memory than ``eviction_memory_threshold``, those of whole rollouts are
    dropped, finished ones first and oldest first, until they take
    ``safe_memory_threshold`` or less.

    Raises:
        InvalidArgumentError: A threshold is out of range, or safe is not below eviction.
    """

    _backend: MemoryBackend  # pyright: ignore[reportIncompatibleVariableOverride]

    @configured_by(MemoryStoreConfig)
    def __init__(self, config: MemoryStoreConfig) -> None:
        budget = MemoryBudget(
            config.eviction_memory_threshold,
            config.safe_memory_threshold,
            config.span_size_estimator,
            memory_capacity(),
        )
        super().__init__(
            MemoryBackend(budget, thread_safe=config.thread_safe),
            scan_debounce_seconds=config.scan_debounce_seconds,
        )
