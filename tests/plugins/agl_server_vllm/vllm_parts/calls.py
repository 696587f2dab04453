"""Calls to the stand-in for vLLM, and its control routes."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from agl_server_vllm import VLLMServer


async def chat(server: VLLMServer, model: str | None = None, **body: Any) -> str:
    body = {"model": model or server.model, "messages": [{"role": "user"}], **body}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{server.base_url}/chat/completions", json=body) as reply,
    ):
        return (await reply.json())["choices"][0]["message"]["content"]


async def held_chat(server: VLLMServer) -> asyncio.Task[str]:
    """Start a call that ends when it is released; return when it is in flight."""
    task = asyncio.create_task(chat(server, user="hold"))
    await until(server, in_flight=1)
    return task


async def until(server: VLLMServer, **wanted: Any) -> None:
    """Wait until the stand-in is in a state."""
    url = server.base_url.removesuffix("/v1") + "/state"
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        while True:
            async with session.get(url) as reply:
                if wanted.items() <= (await reply.json()).items():
                    return
            await asyncio.sleep(0.01)


async def release(server: VLLMServer) -> None:
    url = server.base_url.removesuffix("/v1") + "/release"
    async with aiohttp.ClientSession() as session, session.post(url) as reply:
        assert reply.status == 200
