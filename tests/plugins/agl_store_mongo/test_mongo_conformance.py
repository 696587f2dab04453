"""The MongoDB store under the conformance suite, over TCP."""

import pickle
from functools import partial

import pytest
import pytest_asyncio

from agl_store_mongo import MongoLightningStore
from agl_testing import StoreSuite


# The random histories make thousands of calls to the database server.
@pytest.mark.timeout(600)
class TestMongoStore(StoreSuite):
    flags = frozenset({"thread_safe", "durable", "processes", "events", "ends", "scans"})

    @pytest_asyncio.fixture
    async def store(self, mongo_uri, partition):
        store = MongoLightningStore(mongo_uri, partition_id=partition, scan_debounce_seconds=0)
        yield store
        await store.close()

    async def reopen(self, store):
        return pickle.loads(pickle.dumps(store))

    def connection(self, store):
        return partial(pickle.loads, pickle.dumps(store))
