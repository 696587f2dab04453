"""The client, and a server in front of it, with a server that lacks what version 0.3 lacks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agl_core.errors import InvalidArgumentError
from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_store_http import LightningStoreClient
from agl_store_memory import InMemoryLightningStore
from tests.plugins.agl_store_http.older_server import OlderApp
from tests.plugins.agl_store_http.server.conftest import Served


class Behind(InMemoryLightningStore):
    """A store whose clock stands still at another time."""

    async def now(self) -> float:
        return 12345.5


@pytest_asyncio.fixture
async def client() -> AsyncIterator[LightningStoreClient]:
    store = Behind()
    for mode in ("train", "val"):
        await store.enqueue_rollout("task", mode=mode)
    launcher = PythonServerLauncher(OlderApp(store), PythonServerLauncherArgs())
    await launcher.start()
    client = LightningStoreClient(launcher.endpoint)
    yield client
    await client.close()
    await launcher.stop()


async def test_a_filter_that_the_server_ignores_is_an_error(client: LightningStoreClient):
    with pytest.raises(InvalidArgumentError, match="does not filter by mode"):
        await client.query_rollouts(mode_in=["val"])
    assert (await client.query_rollouts(mode_in=["val", "train"])).total == 2


async def test_a_server_that_tells_no_time_has_this_clock(client: LightningStoreClient):
    assert abs(await client.now() - time.time()) < 60


async def test_the_clock_is_that_of_the_store():
    served = await Served(store=Behind()).start()
    try:
        client = LightningStoreClient(served.url)
        assert await client.now() == 12345.5
        await client.close()
    finally:
        await served.stop()


async def test_a_refused_event_stream_ends_the_capability(client: LightningStoreClient):
    assert client.capabilities.get("events")
    with pytest.raises(NotImplementedError):
        await anext(aiter(client.events()))
    assert not client.capabilities.get("events")


async def test_a_server_in_front_says_that_there_are_no_events(
    client: LightningStoreClient, caplog: pytest.LogCaptureFixture
):
    front = await Served(store=client).start()
    try:
        assert (await front.get("/events")).status == 200  # it has not asked its own server yet
        assert (await front.get("/events")).status == 501
        assert caplog.text == ""
    finally:
        await front.stop()
