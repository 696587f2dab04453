"""The agent: a LangGraph graph that writes a query, runs it, and tries again if it does not run.

::

    write ──▶ execute ──▶ end
      ▲          │ error, and tries are left
      └──────────┘

The framework appears in three places: ``@agl.rollout`` passes the agent a task and the model to
call, ``@agl.operation`` records each call, and the return value is the reward.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, TypedDict

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    SystemMessage,
    convert_to_openai_messages,
)
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

import agl_core as agl
from sql_databases import QueryError, run_query, schema_of
from sql_model import endpoint_of
from sql_tasks import grade

__all__ = ["answer_question", "make_graph", "read_sql"]

INSTRUCTIONS = (
    "You write SQLite queries. Answer with one query in a ```sql block that gives what the "
    "question asks for and nothing more."
)
_MAX_TRIES = 3


class State(TypedDict):
    """State that the graph passes from node to node."""

    messages: Annotated[list[AnyMessage], add_messages]
    database: str
    sql: str
    error: str
    tries: int


@agl.rollout
def answer_question(task: dict[str, Any], llm: agl.LLM) -> float:
    """Write the query for one question; the reward is 1 if it gives the right rows, else 0."""
    schema = schema_of(task["database"])
    start: Any = {
        "messages": [
            SystemMessage(INSTRUCTIONS),
            HumanMessage(f"Tables:\n{schema}\n\nQuestion: {task['question']}"),
        ],
        "database": task["database"],
        "tries": 0,
    }
    end = make_graph(llm).invoke(start)
    return grade(task, end["sql"])


def make_graph(llm: agl.LLM) -> Any:
    """Return the compiled graph over a model."""
    base_url, model, api_key = endpoint_of(llm)
    # In training each attempt has its own URL, so they share connections and not the model.
    http_client, http_async_client = _http_clients()
    chat = ChatOpenAI(
        base_url=base_url,
        model=model,
        api_key=lambda: api_key,
        http_client=http_client,
        http_async_client=http_async_client,
        **llm.sampling_parameters,
    )

    def write(state: State) -> dict[str, Any]:
        messages = state["messages"]
        answers: list[AIMessage] = []

        @agl.operation(name="chat")
        def ask(model: str, messages: list[Any]) -> dict[str, Any]:
            answers.append(chat.invoke(state["messages"]))
            return _completion(answers[-1])

        ask(model=model, messages=convert_to_openai_messages(messages))
        said = answers[-1]
        return {"messages": [said], "sql": read_sql(said.text), "tries": state["tries"] + 1}

    def execute(state: State) -> dict[str, Any]:
        try:
            run_query(state["database"], state["sql"])
        except QueryError as error:
            complaint = f"That does not run: {error}. Write the query again."
            return {"error": str(error), "messages": [HumanMessage(complaint)]}
        return {"error": ""}

    def next_step(state: State) -> str:
        return "write" if state["error"] and state["tries"] < _MAX_TRIES else END

    graph = StateGraph(State)
    graph.add_node("write", write)
    graph.add_node("execute", agl.operation(name="execute")(execute))
    graph.add_edge(START, "write")
    graph.add_edge("write", "execute")
    graph.add_conditional_edges("execute", next_step, ["write", END])
    return graph.compile()


@cache
def _http_clients() -> tuple[DefaultHttpxClient, DefaultAsyncHttpxClient]:
    # One pair per process: clients are thread-safe, and creating one loads the certificates.
    return DefaultHttpxClient(), DefaultAsyncHttpxClient()


def read_sql(text: str) -> str:
    """Return the query in a model's answer: the last code block, or else the whole text."""
    blocks = re.findall(r"```(?:sql|sqlite)?\s*\n(.*?)```", text, flags=re.DOTALL | re.IGNORECASE)
    return (blocks[-1] if blocks else text).strip()


def _completion(said: AIMessage) -> dict[str, Any]:
    """Convert LangChain's message back to a chat completion, for the trace."""
    usage = said.usage_metadata
    return {
        "id": said.id,
        "model": said.response_metadata.get("model_name"),
        "choices": [{"index": 0, "message": convert_to_openai_messages(said)}],
        "usage": {
            "prompt_tokens": usage["input_tokens"] if usage else None,
            "completion_tokens": usage["output_tokens"] if usage else None,
        },
    }
