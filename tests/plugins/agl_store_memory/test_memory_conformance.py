"""The memory store, and the threaded facade of a store that needs it, under the suite."""

import pytest

from agl_store_kit import LightningStoreThreaded
from agl_store_memory import InMemoryLightningStore
from agl_testing import StoreSuite
from tests.core.store.fragile_store import FragileStore


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
        return LightningStoreThreaded(FragileStore())
