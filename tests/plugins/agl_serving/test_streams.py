"""Long replies, and servers that stop while they send one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from agl_serving import Stream, send_stream


async def serve(chunks: AsyncGenerator[bytes, None], **options: Any) -> list[Any]:
    """Send a stream until it ends or the server stops; return the messages."""
    sent: list[Any] = []
    stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        sent.append(message)
        if message.get("body") == b"stop":
            stopping.set_result(None)

    async def receive() -> Any:
        await asyncio.Event().wait()

    await send_stream(Stream(chunks, (), **options), send, receive, stopping)
    return sent


async def cut() -> AsyncGenerator[bytes, None]:
    yield b"stop"
    await asyncio.Event().wait()


async def whole() -> AsyncGenerator[bytes, None]:
    yield b"[1]"


@pytest.mark.parametrize(
    ("chunks", "endless", "ends"),
    [(cut, False, False), (cut, True, True), (whole, False, True)],
)
async def test_only_a_body_that_is_whole_ends(chunks: Any, endless: bool, ends: bool) -> None:
    sent = await serve(chunks(), endless=endless)
    assert (sent[-1] == {"type": "http.response.body", "body": b""}) == ends
