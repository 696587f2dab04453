"""A crew of CrewAI with one agent."""

from __future__ import annotations

import os
from typing import Any

# CrewAI reads these at its import; it would report the run to its makers otherwise.
os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_DISABLE_TRACKING", "true")
os.environ.setdefault("CREWAI_TRACING_ENABLED", "false")

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

import agl_core as agl
from packing import look_up, question, reward

__all__ = ["pack"]


@tool("get_weather")
def get_weather(city: str) -> str:
    """Tell tomorrow's weather in a city."""
    return look_up(city)


@agl.rollout
async def pack(task: dict[str, Any], prompt_template: agl.PromptTemplate, llm: agl.LLM) -> float:
    agent = Agent(
        role="packer",
        goal=prompt_template.format(),
        backstory="You know what travellers need.",
        tools=[get_weather],
        llm=LLM(
            model=f"openai/{llm.model}", base_url=llm.endpoint, api_key=llm.api_key or "proxied"
        ),
    )
    work = Task(description=question(task), expected_output="One word.", agent=agent)
    answer = await Crew(agents=[agent], tasks=[work]).kickoff_async()
    return reward(task, str(answer))
