"""The agent: a loop around an OpenAI client and the tools of an MCP server.

The framework appears in three places: ``@agl.rollout`` passes the agent a task and the model to
call, ``@agl.operation`` records each call of the model and of a tool, and the return value is the
reward.
"""

from __future__ import annotations

import functools
from typing import Any

from openai import OpenAI

import agl_core as agl
from calc_model import endpoint_of
from calc_tasks import INSTRUCTIONS, grade
from calc_tools import Calculator, shared_calculator

__all__ = ["ask", "solve", "solve_problem", "use"]

_MAX_TURNS = 6


@agl.rollout
def solve_problem(task: dict[str, Any], llm: agl.LLM) -> float:
    """Answer one word problem; the reward is 1 for the right number, else 0."""
    return grade(task, solve(task["question"], llm, shared_calculator()))


def solve(question: str, llm: agl.LLM, calculator: Calculator) -> str:
    """Let the model call the calculator until it answers."""
    tools = calculator.definitions()
    messages: list[Any] = [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": question},
    ]
    for _ in range(_MAX_TURNS):
        message = ask(llm, messages, tools)["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message.get("content") or ""
        for call in message["tool_calls"]:
            result = use(calculator, call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return ""


def ask(llm: agl.LLM, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    """Call the model; return its completion."""
    base_url, model, api_key = endpoint_of(llm)
    client = client_of(base_url, api_key)

    @agl.operation(name="chat")  # records arguments and result, so no client or key here
    def chat(model: str, messages: list[Any], tools: list[Any]) -> dict[str, Any]:
        completion = client.chat.completions.create(
            model=model, messages=messages, tools=tools, **llm.sampling_parameters
        )
        return completion.model_dump(mode="json", exclude_none=True)

    return chat(model, messages, tools)


def client_of(base_url: str | None, api_key: str | None) -> OpenAI:
    """Return a client of an endpoint; all share connections, as each attempt has its own URL."""
    shared = _client()
    return shared.with_options(base_url=base_url or shared.base_url, api_key=api_key)


@functools.cache
def _client() -> OpenAI:
    # One client per process: it is thread-safe, and creating one loads the certificates.
    return OpenAI(api_key="none")


def use(calculator: Calculator, name: str, arguments: str) -> str:
    """Call a tool."""

    @agl.operation(name=f"tool {name}")
    def call(arguments: str) -> str:
        return calculator.call(name, arguments)

    return call(arguments)
