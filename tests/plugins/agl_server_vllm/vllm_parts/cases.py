"""Calls in every protocol, made by the official SDKs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState

from agl_tiny_model import WEATHER_TOOL

__all__ = ["CASES", "TURNS", "Case", "SDKResult", "call"]

FUNCTION = WEATHER_TOOL["function"]
STORY = "Tell me a story about a fox."
MAX_TOKENS = 40


@dataclass(frozen=True)
class Case:
    """A call.

    Attributes:
        protocol: ``chat``, ``completions``, ``responses`` or ``messages``.
        kind: ``greedy``: an answer that ends by itself; ``sampled``: temperature 1, cut at
            ``MAX_TOKENS``; ``tools``: one that calls a tool.
        streamed: Whether it is a stream, taken by the async SDK; or else by the sync one.
    """

    protocol: str
    kind: str
    streamed: bool

    def __str__(self) -> str:
        return f"{self.protocol}-{self.kind}-{'stream' if self.streamed else 'plain'}"

    @property
    def question(self) -> str:
        if self.kind == "tools":
            return "How is the weather in Paris?"
        return STORY if self.kind == "sampled" else "How are you?"

    @property
    def temperature(self) -> float:
        return 1.0 if self.kind == "sampled" else 0.0


CASES = [
    Case(protocol, kind, streamed)
    for protocol in ("chat", "completions", "responses", "messages")
    for kind in ("greedy", "sampled", "tools")
    for streamed in (False, True)
    if (protocol, kind) != ("completions", "tools")
]


@dataclass(frozen=True)
class SDKResult:
    """The result of an SDK's call.

    Attributes:
        text: Text of the answer.
        tool: Name and arguments of the tool that is called, if one is.
        usage: Tokens in, tokens out.
    """

    text: str
    tool: tuple[str, Any] | None
    usage: tuple[int, int]


async def call(case: Case, base_url: str, model: str) -> SDKResult:
    """Make a call; ``base_url`` is OpenAI's, which ends in ``/v1``."""
    make = globals()[f"_{case.protocol}"]
    if case.streamed:
        if case.protocol == "messages":
            root = base_url.removesuffix("/v1")
            async with AsyncAnthropic(base_url=root, api_key="none", max_retries=0) as client:
                return await make(case, client, model)
        async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
            return await make(case, client, model)
    return await asyncio.to_thread(_call_sync, case, base_url, model)


def _call_sync(case: Case, base_url: str, model: str) -> SDKResult:
    if case.protocol == "messages":
        root = base_url.removesuffix("/v1")
        with Anthropic(base_url=root, api_key="none", max_retries=0) as client:
            return _messages_of(client.messages.create(**_messages_body(case, model)))
    with OpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        if case.protocol == "chat":
            return _chat_of(client.chat.completions.create(**_chat_body(case, model)))
        if case.protocol == "completions":
            reply = client.completions.create(**_completions_body(case, model))
            return SDKResult(reply.choices[0].text, None, _usage(reply.usage))
        return _responses_of(client.responses.create(**_responses_body(case, model)))


# -- chat ----------------------------------------------------------------------------------------


def _chat_body(case: Case, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": case.question}],
        "temperature": case.temperature,
        "max_tokens": MAX_TOKENS,
    }
    return body | ({"tools": [WEATHER_TOOL]} if case.kind == "tools" else {})


def _chat_of(reply: Any) -> SDKResult:
    message = reply.choices[0].message
    calls = message.tool_calls or []
    tool = (calls[0].function.name, json.loads(calls[0].function.arguments)) if calls else None
    return SDKResult(message.content or "", tool, _usage(reply.usage))


async def _chat(case: Case, client: AsyncOpenAI, model: str) -> SDKResult:
    # The SDK's own helper is built on this, but takes only tools with strict schemas.
    state = ChatCompletionStreamState()
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    async for chunk in await client.chat.completions.create(**_chat_body(case, model), **options):
        state.handle_chunk(chunk)
    return _chat_of(state.get_final_completion())


# -- completions ---------------------------------------------------------------------------------


def _completions_body(case: Case, model: str) -> dict[str, Any]:
    prompt = f"<|im_start|>user\n{case.question}<|im_end|>\n<|im_start|>assistant\n"
    return {
        "model": model,
        "prompt": prompt,
        "temperature": case.temperature,
        "max_tokens": MAX_TOKENS,
    }


async def _completions(case: Case, client: AsyncOpenAI, model: str) -> SDKResult:
    body = _completions_body(case, model)
    chunks = [
        chunk
        async for chunk in await client.completions.create(
            **body, stream=True, stream_options={"include_usage": True}
        )
    ]
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    return SDKResult(text, None, _usage(chunks[-1].usage))


def _usage(usage: Any) -> tuple[int, int]:
    return usage.prompt_tokens, usage.completion_tokens


# -- responses -----------------------------------------------------------------------------------


def _responses_body(case: Case, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "input": case.question,
        "temperature": case.temperature,
        "max_output_tokens": MAX_TOKENS,
    }
    return body | ({"tools": [{"type": "function", **FUNCTION}]} if case.kind == "tools" else {})


def _responses_of(reply: Any) -> SDKResult:
    calls = [item for item in reply.output if item.type == "function_call"]
    tool = (calls[0].name, json.loads(calls[0].arguments)) if calls else None
    return SDKResult(reply.output_text, tool, (reply.usage.input_tokens, reply.usage.output_tokens))


async def _responses(case: Case, client: AsyncOpenAI, model: str) -> SDKResult:
    async with client.responses.stream(**_responses_body(case, model)) as events:
        async for _ in events:
            pass
        return _responses_of(await events.get_final_response())


# -- messages ------------------------------------------------------------------------------------


def _messages_body(case: Case, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": case.question}],
        "max_tokens": MAX_TOKENS,
        "extra_body": {"temperature": case.temperature},  # new SDKs have no parameter for it
    }
    if case.kind == "tools":
        tool = {"name": FUNCTION["name"], "description": FUNCTION["description"]}
        body["tools"] = [{**tool, "input_schema": FUNCTION["parameters"]}]
    return body


def _messages_of(reply: Any) -> SDKResult:
    text = "".join(block.text for block in reply.content if block.type == "text")
    calls = [block for block in reply.content if block.type == "tool_use"]
    tool = (calls[0].name, calls[0].input) if calls else None
    return SDKResult(text, tool, (reply.usage.input_tokens, reply.usage.output_tokens))


async def _messages(case: Case, client: AsyncAnthropic, model: str) -> SDKResult:
    async with client.messages.stream(**_messages_body(case, model)) as events:
        async for _ in events:
            pass
        return _messages_of(await events.get_final_message())


# -- two turns, with a tool's answer between them ------------------------------------------------

PARIS = Case("", "tools", streamed=False)


async def _chat_turns(base_url: str, model: str) -> str:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        body = _chat_body(PARIS, model)
        reply = await client.chat.completions.create(**body)
        said = reply.choices[0].message
        assert said.tool_calls
        result = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "sunny"}
        body["messages"] += [said.model_dump(exclude_none=True), result]
        reply = await client.chat.completions.create(**body)
        return reply.choices[0].message.content or ""


async def _responses_turns(base_url: str, model: str) -> str:
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:
        body = _responses_body(PARIS, model)
        reply = await client.responses.create(**body)
        (item,) = reply.output
        assert item.type == "function_call"
        result = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        question = {"role": "user", "content": body["input"]}
        body["input"] = [question, item.model_dump(exclude_none=True), result]
        return (await client.responses.create(**body)).output_text


async def _messages_turns(base_url: str, model: str) -> str:
    root = base_url.removesuffix("/v1")
    async with AsyncAnthropic(base_url=root, api_key="none", max_retries=0) as client:
        body = _messages_body(PARIS, model)
        reply = await client.messages.create(**body)
        (block,) = reply.content
        assert block.type == "tool_use"
        result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        body["messages"] += [
            {"role": "assistant", "content": [block.model_dump(exclude_none=True)]},
            {"role": "user", "content": [result]},
        ]
        reply = await client.messages.create(**body)
        return "".join(part.text for part in reply.content if part.type == "text")


TURNS: dict[str, Callable[[str, str], Awaitable[str]]] = {
    "chat": _chat_turns,
    "responses": _responses_turns,
    "messages": _messages_turns,
}
"""By protocol: ask for the weather, call the tool, give the answer."""
