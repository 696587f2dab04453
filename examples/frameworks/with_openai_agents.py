"""An agent of the OpenAI Agents SDK."""

from __future__ import annotations

from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI

import agl_core as agl
from packing import look_up, question, reward

__all__ = ["pack"]


@function_tool
def get_weather(city: str) -> str:
    """Tell tomorrow's weather in a city."""
    return look_up(city)


@agl.rollout
async def pack(task: dict[str, Any], prompt_template: agl.PromptTemplate, llm: agl.LLM) -> float:
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "proxied") as client:
        agent = Agent(
            name="packer",
            instructions=prompt_template.format(),
            tools=[get_weather],
            model=OpenAIChatCompletionsModel(model=llm.model, openai_client=client),
        )
        # The SDK's own tracing would send the run to OpenAI.
        quiet = RunConfig(tracing_disabled=True)
        result = await Runner.run(agent, question(task), run_config=quiet)
    return reward(task, str(result.final_output))
