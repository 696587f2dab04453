"""A connection whose request has no complete head in time is closed; no other is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agl_serving import PythonServerLauncher, PythonServerLauncherArgs

LIMIT = 0.4
HEAD = b"GET /slow HTTP/1.1\r\nhost: localhost\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    while (await receive())["type"] == "http.request":
        if scope["path"] == "/long":
            await asyncio.sleep(1.5 * LIMIT)
        break
    headers = [(b"content-length", b"4")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"done"})


@pytest.fixture
async def address() -> AsyncIterator[tuple[str, int]]:
    args = PythonServerLauncherArgs(timeout_request_head=LIMIT)
    launcher = PythonServerLauncher(app, args)
    await launcher.start()
    try:
        yield "127.0.0.1", int(launcher.endpoint.rpartition(":")[2])
    finally:
        await launcher.stop()


async def drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send one byte every 50 ms, until the server closes the connection."""
    for byte in data:
        if writer.is_closing():
            return
        try:
            writer.write(bytes([byte]))
            await writer.drain()
        except ConnectionError:
            return
        await asyncio.sleep(0.05)


async def seconds_until_closed(reader: asyncio.StreamReader) -> tuple[float, bytes]:
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.timeout(5):
        try:
            answer = await reader.read()
        except ConnectionError:
            answer = b""
    return loop.time() - start, answer


@pytest.mark.parametrize("data", [HEAD + b"x-more: " + b"a" * 200, b"\r\n" * 100, b""])
async def test_a_slow_head_is_cut(address: tuple[str, int], data: bytes):
    reader, writer = await asyncio.open_connection(*address)
    dripping = asyncio.create_task(drip(writer, data))
    taken, answer = await seconds_until_closed(reader)
    dripping.cancel()
    writer.close()
    assert LIMIT / 2 < taken < 4 * LIMIT
    assert answer.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("start", [b"G", b"\r\n"])
async def test_a_slow_head_on_a_used_connection_is_cut(address: tuple[str, int], start: bytes):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
    writer.write(start)
    taken, answer = await seconds_until_closed(reader)
    writer.close()
    assert LIMIT / 2 < taken < 4 * LIMIT
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_an_idle_connection_stays_open(address: tuple[str, int]):
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(2):
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(1.5 * LIMIT)
    writer.close()


async def test_a_long_poll_and_a_slow_body_are_not_cut(address: tuple[str, int]):
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /long HTTP/1.1\r\nhost: localhost\r\n\r\nGE")  # and a second one begins
    assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"T / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"POST /long HTTP/1.1\r\nhost: localhost\r\ncontent-length: 12\r\n\r\n")
    await drip(writer, b"twelve bytes")
    assert (await reader.readuntil(b"done")).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_trailers_are_not_headers():
    """RFC 9110, section 6.5.1. A token after the body would pass a gateway that removes tokens."""
    seen: list[Any] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(0.1)  # what is sent in one piece has been read by now
            seen.append(dict(scope["headers"]))
        await app(scope, receive, send)

    launcher = PythonServerLauncher(noting, PythonServerLauncherArgs())
    await launcher.start()
    port = int(launcher.endpoint.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    chunked = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    writer.write(chunked + b"1\r\nx\r\n0\r\nauthorization: Bearer x\r\nhost: evil\r\n\r\n")
    assert b"200 OK" in await reader.readline()
    writer.close()
    await launcher.stop()
    assert seen == [{b"host": b"localhost", b"transfer-encoding": b"chunked"}]


async def test_a_request_for_a_websocket_reaches_its_protocol(monkeypatch: pytest.MonkeyPatch):
    """Uvicorn reads the headers of such a request a second time."""

    class Echo(asyncio.Protocol):
        """In the place of a WebSocket library: sends the request back."""

        def __init__(self, **_: Any) -> None:
            self.transport: Any = None

        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(data)
            self.transport.close()

    monkeypatch.setattr("uvicorn.protocols.websockets.auto.AutoWebSocketsProtocol", Echo)
    launcher = PythonServerLauncher(app, PythonServerLauncherArgs())
    await launcher.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", launcher.port)
    writer.write(b"GET /x HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
    answer = await reader.read()
    writer.close()
    await launcher.stop()
    assert answer.startswith(b"GET /x HTTP/1.1\r\n")
    assert b"upgrade: websocket" in answer
