"""The SQLite store under the conformance suite."""

from functools import partial
from typing import Any

import pytest_asyncio

from agl_store_sqlite import SqliteLightningStore
from agl_testing import StoreSuite


class TestSqliteStore(StoreSuite):
    flags = frozenset({"thread_safe", "durable", "processes", "events"})

    @pytest_asyncio.fixture
    async def store(self, tmp_path):
        # What `full` adds, surviving power loss, no test can see; it would cost minutes of syncs.
        store = SqliteLightningStore(
            tmp_path / "store.db", durability="normal", scan_debounce_seconds=0
        )
        yield store
        await store.close()

    async def reopen(self, store: Any):
        return SqliteLightningStore(store.path, durability="normal", scan_debounce_seconds=0)

    def connection(self, store: Any):
        return partial(SqliteLightningStore, store.path, durability="normal")
