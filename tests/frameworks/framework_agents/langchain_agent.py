"""LangChain's agent, which is implemented as a LangGraph graph."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from agl_core.tracer import get_active_tracer
from framework_agents import tools

NAME = "LangChain"
NEEDS = ("langchain", "langchain-openai")
PROTOCOL = "openai"
AGENT = "weather_agent"


@tool
def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return tools.get_weather(city)


async def ask(url: str, city: str) -> str:
    model = ChatOpenAI(model=tools.MODEL, base_url=f"{url}/v1", api_key="none")  # type: ignore[arg-type]
    agent = create_agent(model, [get_weather], system_prompt=tools.INSTRUCTIONS, name=AGENT)
    question = {"role": "user", "content": f"What is the weather in {city}?"}
    state = await agent.ainvoke({"messages": [question]}, config=_config())  # type: ignore[arg-type]
    return state["messages"][-1].text


def _config() -> dict[str, object]:
    """Return LangChain's config with the tracer's handler, if the tracer has one."""
    tracer = get_active_tracer()
    handler = tracer.get_langchain_handler() if tracer else None
    return {"callbacks": [handler]} if handler else {}
