"""The OpenAI SDK's Responses API, called in a loop."""

from __future__ import annotations

import json
from typing import Any

from openai import AsyncOpenAI

from framework_agents.tools import INSTRUCTIONS, MODEL, OPENAI_TOOL, get_weather

NAME = "OpenAI SDK, Responses"
NEEDS = ("openai",)
PROTOCOL = "responses"
AGENT = None


async def ask(url: str, city: str) -> str:
    items: list[Any] = [{"role": "user", "content": f"What is the weather in {city}?"}]
    tool: Any = {"type": "function", **OPENAI_TOOL["function"]}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        while True:
            response = await client.responses.create(
                model=MODEL, instructions=INSTRUCTIONS, input=items, tools=[tool]
            )
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return response.output_text
            for call in calls:
                items.append(call.model_dump(exclude_none=True))
                answer = {"type": "function_call_output", "call_id": call.call_id}
                items.append({**answer, "output": get_weather(**json.loads(call.arguments))})
