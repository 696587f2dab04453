"""A backend below HTTP libraries: it shows request lines as sent, and answers with any bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

__all__ = ["RawBackend", "RawRequest", "http_response", "raw_call"]


@dataclass(frozen=True)
class RawRequest:
    """A request as bytes on the wire."""

    line: str
    headers: dict[str, str]
    body: bytes
    head: tuple[str, ...] = ()
    """The lines of the headers, which may have a name twice."""


@dataclass
class RawBackend:
    """Answers each request with ``answer``: bytes, or a function that writes them."""

    answer: bytes | Callable[[asyncio.StreamWriter], object] = b""
    requests: list[RawRequest] = field(default_factory=list)
    port: int = 0

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[RawBackend]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *rest = head.rstrip().split("\r\n")
            pairs = [item.partition(":") for item in rest]
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append(RawRequest(line, headers, body, tuple(rest)))
            if callable(self.answer):
                done = self.answer(writer)
                if asyncio.iscoroutine(done):
                    await done
            else:
                writer.write(self.answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the proxy left
        finally:
            writer.close()


def http_response(
    body: bytes, kind: str = "application/json", status: str = "200 OK", **headers: str
) -> bytes:
    """Return a response that ends with its connection."""
    lines = [f"HTTP/1.1 {status}", f"content-type: {kind}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def raw_call(
    port: int, target: str, body: bytes, method: str = "POST", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Send a request whose target no client library has changed; return the whole response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{method} {target} HTTP/1.1", "host: localhost", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines.append(f"content-length: {len(body)}")
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
    await writer.drain()
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    line, *pairs = head.decode("latin-1").split("\r\n")
    split = [item.partition(":") for item in pairs]
    found = {name.lower(): value.strip() for name, _, value in split}
    if "chunked" in found.get("transfer-encoding", ""):
        rest = _unchunk(rest)
    return int(line.split()[1]), found, rest


def _unchunk(body: bytes) -> bytes:
    pieces: list[bytes] = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        pieces.append(body[:length])
        body = body[length + 2 :]
    return b"".join(pieces)
