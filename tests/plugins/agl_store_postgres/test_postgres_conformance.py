"""The PostgreSQL store under the conformance suite, on a real server."""

import pickle
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from agl_store_postgres import PostgresLightningStore
from agl_testing import StoreSuite


# The random histories make thousands of calls to the database server.
@pytest.mark.timeout(600)
class TestPostgresStore(StoreSuite):
    flags = frozenset({"thread_safe", "durable", "processes", "events", "scans"})

    @pytest_asyncio.fixture
    async def store(self, server, schema):
        store = PostgresLightningStore(server.uri, schema_name=schema, scan_debounce_seconds=0)
        yield store
        await store.close()

    async def reopen(self, store: Any):
        return pickle.loads(pickle.dumps(store))

    def connection(self, store: Any):
        return partial(pickle.loads, pickle.dumps(store))
