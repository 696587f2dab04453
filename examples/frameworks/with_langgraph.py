"""A graph of LangGraph, with a node for the model and one for its tools."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import SecretStr

import agl_core as agl
from packing import look_up, question, reward

__all__ = ["pack"]


@tool
def get_weather(city: str) -> str:
    """Tell tomorrow's weather in a city."""
    return look_up(city)


@agl.rollout
async def pack(task: dict[str, Any], prompt_template: agl.PromptTemplate, llm: agl.LLM) -> float:
    key = SecretStr(llm.api_key or "proxied")
    model = ChatOpenAI(model=llm.model, base_url=llm.endpoint, api_key=key)
    with_tools = model.bind_tools([get_weather])
    prompt = SystemMessage(prompt_template.format())

    async def think(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [await with_tools.ainvoke([prompt, *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([get_weather]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    state = await graph.compile(name="packer").ainvoke({"messages": [HumanMessage(question(task))]})
    return reward(task, state["messages"][-1].text)
