"""AutoGen's assistant."""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

from framework_agents import tools

NAME = "AutoGen"
NEEDS = ("autogen-agentchat", "autogen-ext")
PROTOCOL = "openai"
AGENT = "weather_agent"


async def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return tools.get_weather(city)


async def ask(url: str, city: str) -> str:
    client = OpenAIChatCompletionClient(model=tools.MODEL, base_url=f"{url}/v1", api_key="none")
    try:
        agent = AssistantAgent(
            AGENT,
            client,
            tools=[get_weather],
            system_message=tools.INSTRUCTIONS,
            reflect_on_tool_use=True,
        )
        result = await agent.run(task=f"What is the weather in {city}?")
    finally:
        await client.close()
    return result.messages[-1].content  # type: ignore[union-attr]
