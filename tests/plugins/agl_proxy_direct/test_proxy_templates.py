"""Calls of Messages and Responses on servers whose chat templates have rules."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from agl_core.types import AttemptedRollout
from agl_scripted import TEMPLATES, ChatTemplate, Reply, ScriptedModels, TemplateError
from agl_scripted.script import Token

ID = "aB3dE5fG7"
USES = {"type": "tool_use", "id": ID, "name": "read", "input": {"path": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": ID, "content": "text of a"}
REMINDER = {"type": "text", "text": "<system-reminder>"}
MESSAGES = {
    "model": "q",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "You code."}],
    "tools": [{"name": "read", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": [REMINDER, {"type": "text", "text": "fix it"}]},
        {"role": "system", "content": "skills"},
        {"role": "assistant", "content": [USES]},
        {"role": "user", "content": [RESULT, REMINDER]},
        {"role": "system", "content": "late"},
    ],
}
RESPONSES = {
    "model": "q",
    "tools": [
        {"type": "function", "name": "read", "parameters": {"type": "object"}},
        {"type": "web_search"},
    ],
    "input": [
        {"role": "developer", "content": "You code."},
        {"role": "developer", "content": [{"type": "input_text", "text": "permissions"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "context"}]},
        {"role": "user", "content": "fix it"},
        {"type": "function_call", "call_id": ID, "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": ID, "output": "text of a"},
        {"role": "developer", "content": "late"},
        {"role": "user", "content": "hurry"},
    ],
}
CALLS = {"/messages": MESSAGES, "/responses": RESPONSES}
ALTERNATING = {"mistral", "gemma"}


async def post(url: str, body: Any) -> int:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as reply:
        await reply.read()
        return reply.status


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", CALLS)
@pytest.mark.parametrize("name", TEMPLATES)
async def test_every_template_takes_the_calls_of_coding_agents(
    serve: Any,
    backend: Any,
    claim: AttemptedRollout,
    spans: Any,
    name: str,
    path: str,
    stream: bool,
):
    with ScriptedModels([Reply("Done.")], template=TEMPLATES[name]) as models:
        proxy = await serve(backend(models))
        url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint + path
        statuses = [await post(url, {**CALLS[path], "stream": stream}) for _ in range(2)]
    assert statuses == [200, 200]
    # A template that wants turns refuses the first call once, and is known from then on.
    assert len(models.requests) == 2 + (name in ALTERNATING)
    roles = [message["role"] for message in models.requests[-1].body["messages"]]
    after = [] if name in ALTERNATING else ["user"]
    assert roles == ["system", "user", "assistant", "tool", *after]
    text = str(models.requests[-1].body["messages"][3:])
    assert text.index("text of a") < text.index("late")
    for span in await spans():
        assert span.status.status_code == "OK"
        assert ("user_after_tool" in span.attributes["agl.proxy.lost"]) == (name in ALTERNATING)
        assert span.attributes["response_token_ids"]


async def test_calls_at_once_learn_that_a_template_wants_turns(
    serve: Any, backend: Any, claim: AttemptedRollout
):
    """The first refusal makes it known, and each of the others is folded and sent again."""
    with ScriptedModels([Reply("Done.", delay=0.05)], template=TEMPLATES["mistral"]) as models:
        proxy = await serve(backend(models))
        url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint + "/messages"
        calls = [post(url, CALLS["/messages"]) for _ in range(10)]
        assert await asyncio.gather(*calls) == [200] * 10


async def test_a_call_of_chat_passes_unchanged_and_its_refusal_too(
    serve: Any, backend: Any, claim: AttemptedRollout
):
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with ScriptedModels([Reply("Done.")], template=TEMPLATES["mistral"]) as models:
        proxy = await serve(backend(models))
        url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
        assert await post(url + "/chat/completions", {"model": "q", "messages": twice}) == 400
    assert [seen.body["messages"] for seen in models.requests] == [twice]


async def test_an_alternation_that_folding_does_not_mend_is_refused_once_more_and_returned(
    serve: Any, backend: Any, claim: AttemptedRollout
):
    first = {"model": "q", "max_tokens": 9, "messages": [{"role": "assistant", "content": "a"}]}
    with ScriptedModels([Reply("Done.")], template=TEMPLATES["gemma"]) as models:
        proxy = await serve(backend(models))
        url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
        assert [await post(url + "/messages", first) for _ in range(2)] == [400, 400]
    assert len(models.requests) <= 3


class Reasoner(ChatTemplate):
    """OpenAI's rule for models that reason, in its words."""

    def prompt(self, request: Mapping[str, Any]) -> list[Token]:
        if "max_tokens" in request:
            raise TemplateError(
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead."
            )
        return super().prompt(request)


@pytest.mark.parametrize("path", CALLS)
async def test_a_limit_of_tokens_gets_the_name_that_the_model_takes(
    serve: Any, backend: Any, claim: AttemptedRollout, spans: Any, path: str
):
    limit = {"/messages": "max_tokens", "/responses": "max_output_tokens"}[path]
    with ScriptedModels([Reply("Done.")], template=Reasoner("o")) as models:
        proxy = await serve(backend(models))
        url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
        assert [await post(url + path, {**CALLS[path], limit: 9}) for _ in range(2)] == [200, 200]
        chat = {"model": "q", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
        assert await post(url + "/chat/completions", chat) == 400, "a call of chat is the agent's"
    bodies = [seen.body for seen in models.requests]
    assert [body.get("max_completion_tokens") for body in bodies] == [None, 9, 9, None]
    assert [body.get("max_tokens") for body in bodies] == [9, None, None, 9]
    for span in (await spans())[:2]:
        assert span.attributes["gen_ai.request.max_tokens"] == 9


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/messages"])
async def test_a_probe_of_the_server_is_not_a_call(
    serve: Any, backend: Any, models: ScriptedModels, claim: AttemptedRollout, spans: Any, path: str
):
    proxy = await serve(backend(models))
    url = proxy.as_resource(claim.rollout_id, claim.attempt.attempt_id).endpoint
    async with (
        aiohttp.ClientSession() as session,
        session.head(url.removesuffix("/v1") + path) as reply,
    ):
        assert reply.status == 200
    assert models.requests == [] and await spans() == []
