"""The server's protocol, with an engine whose answers a test chooses."""

from __future__ import annotations

from typing import Any

import aiohttp
from transformers import AddedToken

from tests.plugins.agl_server_hf.forced import ForcedServer

HI = [{"role": "user", "content": "Hi"}]


async def post(server: ForcedServer, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.url}/{path}", json={"model": "q", **body}) as reply,
    ):
        assert reply.status == status, await reply.text()
        return await reply.json()


async def test_a_token_that_the_model_does_not_know_is_refused():
    server = ForcedServer("qwen3")
    server.tokenizer.add_tokens([AddedToken("<image>", special=True)])
    unknown = server.tokenizer.convert_tokens_to_ids("<image>")
    async with server.running():
        for path, body in (
            ("chat/completions", {"messages": [{"role": "user", "content": "<image>"}]}),
            ("completions", {"prompt": "<image>"}),
            ("completions", {"prompt": [unknown]}),
        ):
            refusal = await post(server, path, 400, **body)
            assert f"not below {unknown}" in refusal["error"]["message"]
        server.say("Hello")
        assert await post(server, "chat/completions", messages=HI)
