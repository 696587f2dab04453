"""A CrewAI crew with one agent."""

from __future__ import annotations

import os

os.environ.update(  # before the import, which reads these variables
    CREWAI_DISABLE_TELEMETRY="true",
    CREWAI_DISABLE_TRACKING="true",
    CREWAI_TRACING_ENABLED="false",
    OTEL_SDK_DISABLED="false",
)

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

from framework_agents import tools

NAME = "CrewAI"
NEEDS = ("crewai",)
PROTOCOL = "openai"
AGENT = "weather_agent"


@tool("get_weather")
def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return tools.get_weather(city)


async def ask(url: str, city: str) -> str:
    agent = Agent(
        role=AGENT,
        goal=tools.INSTRUCTIONS,
        backstory="A meteorologist.",
        tools=[get_weather],
        llm=LLM(model=f"openai/{tools.MODEL}", base_url=f"{url}/v1", api_key="none"),
    )
    task = Task(
        description=f"What is the weather in {city}?", expected_output="One word.", agent=agent
    )
    crew = Crew(agents=[agent], tasks=[task])
    return str(await crew.kickoff_async())
