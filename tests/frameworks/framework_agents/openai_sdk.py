"""The OpenAI SDK, called in a loop."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI

from framework_agents.tools import INSTRUCTIONS, MODEL, OPENAI_TOOL, get_weather

NAME = "OpenAI SDK"
NEEDS = ("openai",)
PROTOCOL = "openai"
AGENT = None


async def ask(url: str, city: str) -> str:
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"What is the weather in {city}?"},
    ]
    with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        while True:
            completion = client.chat.completions.create(
                model=MODEL,
                messages=messages,
                tools=[OPENAI_TOOL],  # type: ignore[list-item]
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                return message.content or ""
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
                answer = {"role": "tool", "tool_call_id": call.id}
                messages.append({**answer, "content": get_weather(**arguments)})
