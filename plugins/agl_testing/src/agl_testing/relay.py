"""A TCP relay that misbehaves on command: cuts, stalls, delays and mangles.

Put it between a client and a server under test::

    async with FaultyRelay(target_port=server.port) as relay:
        client = Client(f"http://127.0.0.1:{relay.port}")
        relay.cut_replies(after_bytes=10)     # the request is executed, the reply is lost
"""

from __future__ import annotations

import asyncio
from types import TracebackType

__all__ = ["FaultyRelay"]

_CHUNK = 65536
"""Bytes: what a socket gives at most."""


class FaultyRelay:
    """Relays connections on loopback to ``target_port``, with faults that apply to new bytes.

    Not thread-safe: use it in the loop that opened it.

    Attributes:
        port: Port it listens on, once open.
        connections: Connections accepted so far.
    """

    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        self.target_host = target_host
        self.target_port = target_port
        self.port = 0
        self.connections = 0
        self.delay = 0.0
        """Seconds that each chunk waits, in both directions."""
        self.refuse = False
        """Whether new connections are closed at once."""
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._request_bytes_left: int | None = None
        self._reply_bytes_left: int | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> FaultyRelay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- faults ----------------------------------------------------------------------------------

    def cut_all(self) -> None:
        """Cut every open connection now, with a reset."""
        for writer in self._writers:
            writer.transport.abort()

    def cut_requests(self, *, after_bytes: int) -> None:
        """Cut the next connection whose requests have passed this many more bytes; once."""
        self._request_bytes_left = after_bytes

    def cut_replies(self, *, after_bytes: int) -> None:
        """Cut the next connection whose replies have passed this many more bytes; once.

        With 0 the request is executed and its whole reply is lost.
        """
        self._reply_bytes_left = after_bytes

    def stall(self) -> None:
        """Hold all bytes until :meth:`flow`."""
        self._flowing.clear()

    def flow(self) -> None:
        """Release held bytes."""
        self._flowing.set()

    # -- relaying --------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None, "the server runs it in a task"
        self._tasks.add(task)
        try:
            await self._relay(reader, writer)
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection(self.target_host, self.target_port)
        except OSError:
            return
        pair = {writer, upstream[1]}
        self._writers |= pair
        pumps = [
            asyncio.ensure_future(self._pump(reader, upstream[1], is_request=True)),
            asyncio.ensure_future(self._pump(upstream[0], writer, is_request=False)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pair:
                each.transport.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers -= pair

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_request: bool
    ) -> None:
        while data := await reader.read(_CHUNK):
            await self._flowing.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            kept = self._kept(data, is_request=is_request)
            writer.write(kept)
            await writer.drain()
            if len(kept) < len(data):
                return  # the cut: closing this pump closes the connection

    def _kept(self, data: bytes, *, is_request: bool) -> bytes:
        left = self._request_bytes_left if is_request else self._reply_bytes_left
        if left is None:
            return data
        if len(data) <= left:
            left -= len(data)
        else:
            data, left = data[:left], None
        if is_request:
            self._request_bytes_left = left
        else:
            self._reply_bytes_left = left
        return data
