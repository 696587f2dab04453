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


async def test_null_means_that_a_field_is_left_out():
    """OpenAI's SDK sends None as null."""
    fields = (
        "n stream stream_options max_tokens temperature top_p top_k seed stop stop_token_ids "
        "ignore_eos return_token_ids logprobs top_logprobs tools tool_choice response_format "
        "chat_template_kwargs kv_transfer_params logit_bias max_completion_tokens"
    )
    nulls: dict[str, Any] = dict.fromkeys(fields.split())
    async with ForcedServer("qwen3").running() as server:
        asks: dict[str, Any] = {
            "chat/completions": {"messages": HI},
            "completions": {"prompt": "a"},
        }
        for path, ask in asks.items():
            server.say("Hello")
            (choice,) = (await post(server, path, **nulls, **ask))["choices"]
            assert choice["logprobs"] is None and "token_ids" not in choice
        nulls["add_generation_prompt"] = None
        rendered = await post(server, "../tokenize", messages=HI, **nulls)
        assert rendered["tokens"] == server.engine.prompts[0]
        refusal = await post(server, "chat/completions", 400, messages=None)
        assert "messages" in refusal["error"]["message"]


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
