"""The OpenAI SDK's asynchronous client, streaming."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

from framework_agents.tools import INSTRUCTIONS, MODEL, OPENAI_TOOL, get_weather

NAME = "OpenAI SDK, async streams"
NEEDS = ("openai",)
PROTOCOL = "openai"
AGENT = None


async def ask(url: str, city: str) -> str:
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"What is the weather in {city}?"},
    ]
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        while True:
            text, calls = await _turn(client, messages)
            if not calls:
                return text
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            for call in calls:
                answer = {"role": "tool", "tool_call_id": call["id"]}
                arguments = json.loads(call["function"]["arguments"])
                messages.append({**answer, "content": get_weather(**arguments)})


async def _turn(client: AsyncOpenAI, messages: list[Any]) -> tuple[str, list[dict[str, Any]]]:
    """Stream one answer; return its text and its tool calls."""
    text = ""
    calls: list[dict[str, Any]] = []
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        tools=[OPENAI_TOOL],  # type: ignore[list-item]
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or ():
                if piece.index == len(calls):
                    function = {"name": "", "arguments": ""}
                    calls.append({"id": piece.id, "type": "function", "function": function})
                function = calls[piece.index]["function"]
                if piece.function is not None:
                    function["name"] += piece.function.name or ""
                    function["arguments"] += piece.function.arguments or ""
    return text, calls
