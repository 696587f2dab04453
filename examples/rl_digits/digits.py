"""The agent and its tasks: look at a shelf with a tool, and name the digit that lies there.

The agent is an ordinary program around an OpenAI client. The framework appears in two places:
``@agl.rollout`` passes the agent a task and the model to use, and the return value is the reward.
"""

from __future__ import annotations

import functools
import json
import random
import re
from typing import Any

from openai import OpenAI

import agl_core as agl

__all__ = ["TOOLS", "look", "make_tasks", "train_tasks", "val_tasks", "visit"]

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Say which digit lies on a shelf.",
            "parameters": {
                "type": "object",
                "properties": {"shelf": {"type": "string", "description": "a digit"}},
                "required": ["shelf"],
            },
        },
    }
]


@agl.rollout
def visit(task: dict[str, Any], llm: agl.LLM) -> float:
    """Do one task; half of the reward is for the right shelf, half for the right digit.

    The model sees the digits only through the tool, so the answer takes two turns.
    """
    asked, shelves = str(task["shelf"]), task["shelves"]
    messages: list[Any] = [{"role": "user", "content": f"Shelf {asked}?"}]
    first = ask(llm, messages)
    if len(first.get("tool_calls") or ()) != 1:
        return 0.0
    call = first["tool_calls"][0]
    looked, found = look(shelves, call["function"])
    messages += [first, {"role": "tool", "tool_call_id": call["id"], "content": found}]
    answer = (ask(llm, messages).get("content") or "").strip()
    return 0.5 * (looked == asked) + 0.5 * (answer == shelves[int(asked)])


def ask(llm: agl.LLM, messages: list[Any]) -> dict[str, Any]:
    """Return the model's next message."""
    here = client().with_options(base_url=llm.endpoint)  # each attempt has its own URL
    completion = here.chat.completions.create(
        model=llm.model, messages=messages, tools=TOOLS, **llm.sampling_parameters
    )
    return completion.choices[0].message.model_dump(exclude_none=True)


def look(shelves: str, call: dict[str, Any]) -> tuple[str, str]:
    """Run the model's tool call; return the shelf that it names and the tool's answer."""
    try:
        shelf = json.loads(call["arguments"])["shelf"]
    except (ValueError, KeyError, TypeError):
        return "", "?"
    if call["name"] != "look" or not (isinstance(shelf, str) and re.fullmatch("[0-9]", shelf)):
        return "", "?"
    return shelf, shelves[int(shelf)]


@functools.cache
def client() -> OpenAI:
    # One client per process: creating a client loads the certificates.
    return OpenAI(base_url="http://127.0.0.1", api_key="none", timeout=60)


def make_tasks(count: int, seed: int) -> list[dict[str, Any]]:
    """Return tasks: the shelf in question, and the digits on all ten shelves."""
    rng = random.Random(seed)
    return [
        {
            "shelf": rng.randrange(10),
            "shelves": "".join(str(rng.randrange(10)) for _ in range(10)),
        }
        for _ in range(count)
    ]


def train_tasks() -> list[dict[str, Any]]:
    return make_tasks(1000, seed=1)


def val_tasks() -> list[dict[str, Any]]:
    return make_tasks(100, seed=2)
