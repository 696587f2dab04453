"""``wait_for_rollouts`` of the client ends at its timeout, whatever the server does."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest

from agl_core.errors import StoreUnavailableError
from agl_store_http import LightningStoreClient

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
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    client = LightningStoreClient(address)
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="does not answer"):
        await client.wait_for_rollouts(rollout_ids=["ro-1"], timeout=TIMEOUT)
    assert time.monotonic() - began < TIMEOUT + LATE
    await client.close()
