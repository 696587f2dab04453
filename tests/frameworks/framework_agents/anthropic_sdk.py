"""The Anthropic SDK, called in a loop."""

from __future__ import annotations

from typing import Any

from anthropic import AsyncAnthropic

from framework_agents.tools import ANTHROPIC_TOOL, INSTRUCTIONS, MODEL, get_weather

NAME = "Anthropic SDK"
NEEDS = ("anthropic",)
PROTOCOL = "anthropic"
AGENT = None


async def ask(url: str, city: str) -> str:
    messages: list[Any] = [{"role": "user", "content": f"What is the weather in {city}?"}]
    async with AsyncAnthropic(base_url=url, api_key="none") as client:
        while True:
            message = await client.messages.create(
                model=MODEL,
                system=INSTRUCTIONS,
                messages=messages,
                tools=[ANTHROPIC_TOOL],  # type: ignore[list-item]
                max_tokens=64,
            )
            calls: list[Any] = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content if block.type == "text")
            blocks = [block.model_dump(exclude_none=True) for block in message.content]
            messages.append({"role": "assistant", "content": blocks})
            answers = [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": get_weather(call.input["city"]),
                }
                for call in calls
            ]
            messages.append({"role": "user", "content": answers})
