"""The OpenAI Agents SDK."""

from __future__ import annotations

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI

from framework_agents import tools

NAME = "OpenAI Agents SDK"
NEEDS = ("openai-agents",)
PROTOCOL = "openai"
AGENT = "weather_agent"


@function_tool
def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return tools.get_weather(city)


async def ask(url: str, city: str) -> str:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        agent = Agent(
            name=AGENT,
            instructions=tools.INSTRUCTIONS,
            tools=[get_weather],
            model=OpenAIChatCompletionsModel(model=tools.MODEL, openai_client=client),
        )
        result = await Runner.run(agent, f"What is the weather in {city}?")
    return result.final_output
