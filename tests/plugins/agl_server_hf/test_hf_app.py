"""The server's protocol, with an engine whose answers a test chooses."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from pydantic import ValidationError
from transformers import AddedToken

from agl_server_hf.protocol import ChatRequest
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


async def test_an_answer_goes_on_with_the_last_message():
    messages = [*HI, {"role": "assistant", "content": "It is"}]
    ask: dict[str, Any] = {"messages": messages, "add_generation_prompt": False}
    async with ForcedServer("llama3").running() as server:
        server.say(" sunny")
        body = await post(server, "chat/completions", continue_final_message=True, **ask)
        assert body["choices"][0]["message"]["content"] == " sunny"
        rendered = await post(server, "../tokenize", continue_final_message=True, **ask)
        assert rendered["tokens"] == server.engine.prompts[0]
        text = server.tokenizer.decode(rendered["tokens"])
        assert text.endswith("<|end_header_id|>\n\nIt is")
        server.say("Hello")
        await post(server, "chat/completions", **ask)
        assert server.tokenizer.decode(server.engine.prompts[1]) == text + server.family.end
        ask["add_generation_prompt"] = True
        refusal = await post(server, "chat/completions", 400, continue_final_message=True, **ask)
        assert "continue_final_message" in refusal["error"]["message"]


@pytest.mark.parametrize(
    "parameter",
    [
        {"add_special_tokens": True},
        {"allowed_token_ids": [1]},
        {"bad_words": ["a"]},
        {"chat_template": "a"},
        {"documents": [{}]},
        {"functions": [{}]},
        {"guided_grammar": "a"},
        {"include_stop_str_in_output": True},
        {"skip_special_tokens": False},
        {"truncate_prompt_tokens": 1},
    ],
)
def test_what_would_change_the_prompt_or_the_sampling_is_refused(parameter: dict[str, Any]):
    with pytest.raises(ValidationError, match=f"does not support {next(iter(parameter))}="):
        ChatRequest.model_validate({"model": "q", "messages": HI, **parameter})


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
