"""``wait_for_rollouts`` of the client ends at its timeout, whatever the server does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest

from agl_core.errors import StoreUnavailableError
from agl_store_http import LightningStoreClient, LightningStoreServer
from agl_store_http.client.transport import Reply
from agl_store_memory import InMemoryLightningStore
from agl_testing import FaultyRelay
from agl_testing.ports import held_port

TIMEOUT = 0.3
LATE = 0.2
"""Seconds that a busy machine may add."""

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]


@asynccontextmanager
async def server_that(handler: Handler) -> AsyncGenerator[str]:
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await handler(reader, writer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(
        lambda r, w: tasks.append(asyncio.ensure_future(serve(r, w))), "127.0.0.1", 0
    )
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass


async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()


async def test_a_server_that_never_answers_costs_no_more_than_the_timeout() -> None:
    async with server_that(say_nothing) as address:
        client = LightningStoreClient(address)
        began = time.monotonic()
        assert list(await client.wait_for_rollouts(rollout_ids=["ro-1"], timeout=TIMEOUT)) == []
        assert TIMEOUT <= time.monotonic() - began < TIMEOUT + LATE
        await client.close()


async def test_a_server_that_fails_is_reported_at_the_timeout_and_not_after_the_retries() -> None:
    async with server_that(fail) as address:
        client = LightningStoreClient(address)
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            await client.wait_for_rollouts(rollout_ids=["ro-1"], timeout=TIMEOUT)
        assert time.monotonic() - began < TIMEOUT + LATE
        await client.close()


async def test_a_server_that_is_gone_is_reported_at_the_timeout() -> None:
    with held_port() as port:
        client = LightningStoreClient(f"http://127.0.0.1:{port}")
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="does not answer"):
            await client.wait_for_rollouts(rollout_ids=["ro-1"], timeout=TIMEOUT)
        assert time.monotonic() - began < TIMEOUT + LATE
    await client.close()


async def test_a_deadline_that_passes_while_it_looks_for_open_rollouts_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = LightningStoreClient("http://127.0.0.1:9")
    asked = 0

    async def answer(*args: object, **more: object) -> Reply:
        nonlocal asked
        asked += 1
        assert more["seconds"] is not None, "a lost server would be waited for"
        return Reply(b"[]", 1)

    async def hang(**filters: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "call", answer)
    monkeypatch.setattr(client, "query_rollouts", hang)
    assert list(await client.wait_for_rollouts(rollout_ids=["ro-1"], timeout=0.1)) == []
    assert asked == 1
    await client.close()


async def test_a_server_that_is_killed_during_a_short_wait_fails_nobody() -> None:
    """A batch waits in slices of half a second, which are shorter than a restart."""
    store = InMemoryLightningStore()
    server = LightningStoreServer(store, port=0)
    await server.start()
    async with FaultyRelay(int(server.endpoint.rpartition(":")[2])) as relay:
        client = LightningStoreClient(f"http://127.0.0.1:{relay.port}")
        rollout = await client.enqueue_rollout("task")

        async def kill_and_start() -> None:
            await asyncio.sleep(0.2)
            relay.refuse = True
            relay.cut_all()
            await asyncio.sleep(1.5)
            relay.refuse = False

        restarting = asyncio.create_task(kill_and_start())
        while not restarting.done():
            found = await client.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0.5)
            assert list(found) == []
        await store.start_attempt(rollout.rollout_id)
        await store.update_attempt(rollout.rollout_id, "latest", status="succeeded")
        (done,) = await client.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=5)
        assert done.status == "succeeded"
        await client.close()
    await server.stop()


async def test_a_server_that_stays_away_is_an_error_in_the_end() -> None:
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    client = LightningStoreClient(server.endpoint, reconnect_timeout=1.0)
    rollout = await client.enqueue_rollout("task")
    await server.stop()
    began = time.monotonic()

    async def wait_on() -> None:
        while time.monotonic() - began < 20:
            await client.wait_for_rollouts(rollout_ids=[rollout.rollout_id], timeout=0.2)

    with pytest.raises(StoreUnavailableError):
        await wait_on()
    assert time.monotonic() - began >= 1.0
    await client.close()
