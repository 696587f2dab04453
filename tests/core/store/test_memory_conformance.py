"""The memory store and its threaded facade under the conformance suite."""

import pytest

from agl_core.store import InMemoryLightningStore, LightningStoreThreaded
from agl_testing import StoreSuite


class TestMemoryStore(StoreSuite):
    flags = frozenset({"thread_safe", "events", "ends", "scans", "evicts"})

    @pytest.fixture
    def store(self):
        return InMemoryLightningStore(scan_debounce_seconds=0)

    @pytest.fixture
    def small_store(self):
        return InMemoryLightningStore(eviction_memory_threshold=75_000)


class TestThreadedFacade(StoreSuite):
    flags = frozenset({"thread_safe", "events", "ends", "scans"})

    @pytest.fixture
    def store(self):
        return LightningStoreThreaded(InMemoryLightningStore(scan_debounce_seconds=0))
