"""Two agents on one index: one retrieves pages once, the other searches as often as it wants to.

Both are rewarded with 1 if the answer is exactly the right one, up to case and punctuation.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from openai import OpenAI

import agl_core as agl
from index import Index
from pages import Page, make_pages

__all__ = ["AGENTS", "client", "exact_match", "index", "retrieve_once", "search_often"]

_MAX_TURNS = 8
_ANSWER = "Answer with the name alone, or with 'unknown'."

SEARCH: Any = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Return the three pages that fit the words best.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}},
            "required": ["query"],
        },
    },
}


@agl.rollout
def retrieve_once(task: dict[str, Any], llm: agl.LLM) -> float:
    """Retrieval-augmented generation: pages for the question, then one call."""
    pages = search(task["question"])
    prompt = f"{as_text(pages)}\n\n{task['question']} {_ANSWER}"
    completion = (
        client()
        .with_options(base_url=llm.endpoint)
        .chat.completions.create(model=llm.model, messages=[{"role": "user", "content": prompt}])
    )
    return exact_match(completion.choices[0].message.content or "", task["answer"])


@agl.rollout
def search_often(task: dict[str, Any], llm: agl.LLM) -> float:
    """The model calls the search as a tool, until it answers."""
    here = client().with_options(base_url=llm.endpoint)  # each attempt has its own URL
    messages: list[Any] = [{"role": "user", "content": f"{task['question']} {_ANSWER}"}]
    for _ in range(_MAX_TURNS):
        completion = here.chat.completions.create(
            model=llm.model, messages=messages, tools=[SEARCH]
        )
        message = completion.choices[0].message.model_dump(mode="json", exclude_none=True)
        messages.append(message)
        if not message.get("tool_calls"):
            return exact_match(message.get("content") or "", task["answer"])
        for call in message["tool_calls"]:
            found = result_of(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": found})
    return 0.0


AGENTS = {"retrieve once": retrieve_once, "search often": search_often}


def result_of(arguments: str) -> str:
    """Answer the model's tool call; a wrong call gets an error text for the model."""
    try:
        query = json.loads(arguments)["query"]
    except (ValueError, KeyError, TypeError):
        return "error: search takes one argument, query"
    return as_text(search(str(query)))


@agl.operation(name="search")
def search(query: str) -> list[Page]:
    """Search the index; the operation is in the trace with its query and its pages."""
    return index().search(query)


def as_text(pages: Sequence[Page]) -> str:
    return "\n".join(page.text for page in pages) or "no page"


def exact_match(answer: str, right: str) -> float:
    """Return 1 if two names are the same up to case, punctuation and a leading "the", else 0."""
    return float(_plain(answer) == _plain(right))


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower().removeprefix("the ")))


@functools.cache
def index() -> Index:
    return Index(make_pages())


@functools.cache
def client() -> OpenAI:
    # One client per process: creating a client loads the certificates.
    return OpenAI(base_url="http://127.0.0.1", api_key="proxied", timeout=60)
