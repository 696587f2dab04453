"""Bodies that do not come are not waited for for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agl_serving import (
    HTTPError,
    PythonServerLauncher,
    PythonServerLauncherArgs,
    http,
    read_body,
    send_response,
)

LIMIT = 0.3
HEAD = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    try:
        body = await read_body(receive, dict(scope["headers"]), 100)
    except HTTPError as error:
        await send_response(send, error.status, str(error.detail).encode(), error.headers)
    else:
        await send_response(send, 200, body)


@pytest.mark.parametrize("sent", [b"", b"12345"])
async def test_a_body_that_does_not_come_in_time_is_refused(
    sent: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http, "_BODY_SECONDS", LIMIT)
    launcher = PythonServerLauncher(app, PythonServerLauncherArgs())
    await launcher.start()
    try:
        port = int(launcher.endpoint.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + sent)
        async with asyncio.timeout(5):
            answer = await reader.read()
        writer.close()
    finally:
        await launcher.stop()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer
    assert answer.endswith(b"the body was not complete after 0.3 seconds")


async def test_a_body_in_pieces_is_one():
    pieces = [b"ab", b"", b"cd"]

    async def receive() -> Any:
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    assert await read_body(receive, {}, 4) == b"abcd"
