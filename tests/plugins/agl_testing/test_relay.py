"""The faulty relay, between a real client and a real server."""

from __future__ import annotations

import asyncio

import pytest_asyncio

from agl_testing import FaultyRelay

REPLY = b"reply to: "


class Server:
    """Answers each line with `reply to: ` and the line."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(REPLY + line)
                await writer.drain()
        except ConnectionError:
            self.lines.append(b"reset")
        finally:
            writer.close()


@pytest_asyncio.fixture
async def server():
    server = Server()
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    yield server
    listening.close()
    await listening.wait_closed()


@pytest_asyncio.fixture
async def relay(server):
    async with FaultyRelay(target_port=server.port) as relay:
        yield relay


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, line: bytes) -> bytes:
        self.writer.write(line + b"\n")
        return await asyncio.wait_for(self.reader.readline(), 10)

    async def rest(self) -> bytes:
        """Read all bytes up to the cut."""
        got = b""
        try:
            while data := await asyncio.wait_for(self.reader.read(100), 10):
                got += data
        except ConnectionError:
            return got
        return got


@pytest_asyncio.fixture
async def connect(relay):
    clients: list[Client] = []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", relay.port)))
        return clients[-1]

    yield connect
    for client in clients:
        client.writer.transport.abort()


async def test_without_faults_everything_passes(relay, connect):
    client = await connect()
    for number in range(3):
        assert await client.ask(b"%d" % number) == REPLY + b"%d\n" % number
    big = b"x" * 60_000
    assert await client.ask(big) == REPLY + big + b"\n"
    assert relay.connections == 1


async def test_a_cut_reply_is_lost_though_the_request_was_done(relay, server, connect):
    client = await connect()
    relay.cut_replies(after_bytes=0)
    client.writer.write(b"pay\n")
    assert await client.rest() == b""
    assert server.lines[0] == b"pay\n"
    # The cut happens once: the next connection works.
    assert await (await connect()).ask(b"again") == REPLY + b"again\n"


async def test_a_reply_is_cut_after_so_many_bytes(relay, connect):
    client = await connect()
    relay.cut_replies(after_bytes=5)
    client.writer.write(b"x\n")
    assert await client.rest() == REPLY[:5]


async def test_a_cut_request_is_never_seen_whole(relay, server, connect):
    client = await connect()
    relay.cut_requests(after_bytes=2)
    client.writer.write(b"hello\n")
    assert await client.rest() == b""
    assert b"hello\n" not in server.lines


async def test_a_stall_holds_bytes_until_they_may_flow(relay, server, connect):
    client = await connect()
    relay.stall()
    asked = asyncio.ensure_future(client.ask(b"x"))
    await asyncio.wait({asked}, timeout=0.2)
    assert not asked.done()
    assert server.lines == []
    relay.flow()
    assert await asked == REPLY + b"x\n"


async def test_cutting_all_resets_open_connections(relay, connect):
    client = await connect()
    await client.ask(b"x")
    relay.cut_all()
    assert await client.rest() == b""


async def test_a_delay_slows_each_way(relay, connect):
    relay.delay = 0.1
    client = await connect()
    start = asyncio.get_running_loop().time()
    await client.ask(b"x")
    assert asyncio.get_running_loop().time() - start >= 0.2


async def test_refusing_cuts_new_connections_only(relay, connect):
    old = await connect()
    await old.ask(b"x")
    relay.refuse = True
    assert await (await connect()).rest() == b""
    assert await old.ask(b"y") == REPLY + b"y\n"


async def test_a_server_that_is_gone(connect):
    async with FaultyRelay(target_port=1) as relay:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await Client(reader, writer).rest() == b""
        writer.close()
