"""An assistant of AutoGen."""

from __future__ import annotations

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

import agl_core as agl
from packing import look_up, question, reward

__all__ = ["pack"]

# AutoGen asks what a model can do if it does not know the model's name.
CAN: Any = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "structured_output": False,
    "family": "unknown",
}


async def get_weather(city: str) -> str:
    """Tell tomorrow's weather in a city."""
    return look_up(city)


@agl.rollout
async def pack(task: dict[str, Any], prompt_template: agl.PromptTemplate, llm: agl.LLM) -> float:
    client = OpenAIChatCompletionClient(
        model=llm.model, base_url=llm.endpoint, api_key=llm.api_key or "proxied", model_info=CAN
    )
    try:
        agent = AssistantAgent(
            "packer",
            client,
            tools=[get_weather],
            system_message=prompt_template.format(),
            reflect_on_tool_use=True,
        )
        result = await agent.run(task=question(task))
    finally:
        await client.close()
    return reward(task, str(getattr(result.messages[-1], "content", "")))
