"""A LangGraph graph, with a node for the model and one for its tools."""

from __future__ import annotations

from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agl_core.tracer import get_active_tracer
from framework_agents import tools

NAME = "LangGraph"
NEEDS = ("langgraph", "langchain-openai")
PROTOCOL = "openai"
AGENT = "weather_graph"


@tool
def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return tools.get_weather(city)


async def ask(url: str, city: str) -> str:
    model = ChatOpenAI(model=tools.MODEL, base_url=f"{url}/v1", api_key="none")  # type: ignore[arg-type]
    with_tools = model.bind_tools([get_weather])

    def think(state: MessagesState) -> dict[str, list[AnyMessage]]:
        prompt = [SystemMessage(tools.INSTRUCTIONS), *state["messages"]]
        return {"messages": [with_tools.invoke(prompt)]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([get_weather]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    compiled = graph.compile(name=AGENT)
    question = {"role": "user", "content": f"What is the weather in {city}?"}
    tracer = get_active_tracer()
    handler = tracer.get_langchain_handler() if tracer else None
    config = {"callbacks": [handler]} if handler else {}
    state = await compiled.ainvoke({"messages": [question]}, config=config)  # type: ignore[arg-type]
    return state["messages"][-1].text
