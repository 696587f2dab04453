"""The head of a response leaves together with its first part, and never waits for one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from agl_serving import PythonServerLauncher, PythonServerLauncherArgs
from agl_serving.joined_writes import JoinedWrites

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Connection:
    """Records what is written, and the end."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)

    def write_eof(self) -> None:
        self.sent.append(b"EOF")

    def close(self) -> None:
        self.sent.append(b"CLOSED")

    def is_closing(self) -> bool:
        return b"CLOSED" in self.sent

    def get_write_buffer_size(self) -> int:
        return 7


@pytest.fixture
def connection() -> Connection:
    return Connection()


def joined(connection: Any) -> JoinedWrites:
    return JoinedWrites(connection)


async def test_a_head_and_a_body_are_one_write(connection: Connection):
    transport = joined(connection)
    transport.write(HEAD)
    assert connection.sent == []
    transport.write(b"body")
    transport.write(b"more")
    transport.write(HEAD)
    transport.writelines([b"an", b"other"])
    assert connection.sent == [HEAD + b"body", b"more", HEAD + b"another"]
    await asyncio.sleep(0)
    assert len(connection.sent) == 3


async def test_a_head_alone_leaves_in_the_next_turn(connection: Connection):
    transport = joined(connection)
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert connection.sent == [HEAD]
    transport.write(b"body")
    assert connection.sent == [HEAD, b"body"]


@pytest.mark.parametrize(("end", "mark"), [("close", b"CLOSED"), ("write_eof", b"EOF")])
async def test_a_head_leaves_before_the_end(connection: Connection, end: str, mark: bytes):
    transport = joined(connection)
    transport.write(HEAD)
    getattr(transport, end)()
    assert connection.sent == [HEAD, mark]
    await asyncio.sleep(0)
    assert len(connection.sent) == 2


async def test_a_large_body_is_not_copied(connection: Connection):
    transport = joined(connection)
    body = b"x" * 70_000
    transport.write(HEAD)
    transport.write(body)
    assert connection.sent == [HEAD, body]
    assert connection.sent[1] is body


async def test_two_heads_in_one_turn_keep_their_order(connection: Connection):
    transport = joined(connection)
    transport.write(HEAD)
    transport.write(HEAD)
    assert connection.sent == [HEAD + HEAD]


async def test_the_rest_is_the_transports(connection: Connection):
    transport = joined(connection)
    assert transport.get_write_buffer_size() == 7
    assert not transport.is_closing()
    transport.close()
    assert transport.is_closing()


# -- on a real socket ------------------------------------------------------------------------------

Serve = Callable[[Any], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    launchers: list[PythonServerLauncher] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(app: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        launcher = PythonServerLauncher(app, PythonServerLauncherArgs())
        launchers.append(launcher)
        await launcher.start()
        port = int(launcher.endpoint.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader, writer

    yield serve
    for writer in writers:
        writer.close()
    for launcher in launchers:
        await launcher.stop()


async def test_a_stream_begins_before_its_first_part(serve: Serve):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        message = await receive()  # the client leaves
        assert message["type"] == "http.disconnect"

    reader, writer = await serve(app)
    writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_a_response_without_a_body_ends(serve: Serve, method: str):
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        await receive()
        status = 200 if scope["method"] == "HEAD" else 204
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    reader, writer = await serve(app)
    for _ in range(3):  # on one connection
        writer.write(b"%b / HTTP/1.1\r\nhost: localhost\r\n\r\n" % method.encode())
        async with asyncio.timeout(10):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 20")
