"""An agent without a framework: JSON over HTTP."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from framework_agents.tools import INSTRUCTIONS, MODEL, OPENAI_TOOL, get_weather

NAME = "plain HTTP"
NEEDS = ("aiohttp",)
PROTOCOL = "openai"
AGENT = None


async def ask(url: str, city: str) -> str:
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"What is the weather in {city}?"},
    ]
    async with aiohttp.ClientSession() as session:
        while True:
            body = {"model": MODEL, "messages": messages, "tools": [OPENAI_TOOL]}
            async with session.post(f"{url}/v1/chat/completions", json=body) as reply:
                message = (await reply.json())["choices"][0]["message"]
            if not message.get("tool_calls"):
                return message["content"]
            messages.append(message)
            for call in message["tool_calls"]:
                arguments = json.loads(call["function"]["arguments"])
                answer = {"role": "tool", "tool_call_id": call["id"]}
                messages.append({**answer, "content": get_weather(**arguments)})
