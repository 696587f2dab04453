"""A store behind the server, seen through the client, under the conformance suite."""

from functools import partial
from typing import Any

import pytest_asyncio

from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_memory import InMemoryLightningStore
from agl_testing import StoreSuite


class TestServedMemoryStore(StoreSuite):
    flags = frozenset({"thread_safe", "processes", "events", "ends", "scans"})

    @pytest_asyncio.fixture
    async def store(self):
        server = LightningStoreServer(InMemoryLightningStore(scan_debounce_seconds=0), port=0)
        await server.start()
        client = LightningStoreClient(server.endpoint)
        yield client
        await client.close()
        await server.stop()

    def connection(self, store: Any):
        return partial(LightningStoreClient, store.server_address)  # pyright: ignore[reportCallIssue]
