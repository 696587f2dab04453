"""Selects the model by environment variables, as any OpenAI client does.

With ``OPENAI_BASE_URL`` or ``OPENAI_API_KEY`` set, the model is at that endpoint, and
``OPENAI_MODEL`` is its name. With neither set, a SIMULATED model starts in this process and logs
that it is simulated. It is not a language model: rules solve the four kinds of problems, and random
numbers make some answers wrong.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import sys
import threading
from random import Random
from typing import Any

import agl_core as agl

__all__ = ["FROM_ENVIRONMENT", "MODEL_NAME", "endpoint_of", "simulate"]

FROM_ENVIRONMENT = "environment"
"""Endpoint of a resource for which the environment variables select the model."""
MODEL_NAME = "simulated-calculator-user"
_DEFAULT_MODEL = "gpt-4.1-mini"
_starting = threading.Lock()
_SLIP = 0.15  # probability of a wrong formula
_GUESS = 0.15  # probability of an answer without the tool


def endpoint_of(llm: agl.LLM) -> tuple[str | None, str, str | None]:
    """Return base URL, model name and API key for an OpenAI client.

    Args:
        llm: The resource that the agent received.
    """
    if llm.endpoint != FROM_ENVIRONMENT:
        return llm.endpoint, llm.model, llm.api_key or "none"
    if os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY"):
        model = os.environ.get("OPENAI_MODEL", _DEFAULT_MODEL)
        return os.environ.get("OPENAI_BASE_URL"), model, os.environ.get("OPENAI_API_KEY") or "none"
    with _starting:
        return _simulated(), MODEL_NAME, "simulated"


@functools.cache
def _simulated() -> str:
    """Start the simulated model; return its base URL."""
    import atexit

    from agl_scripted import ScriptedModels

    print(
        "No OPENAI_BASE_URL or OPENAI_API_KEY: a SIMULATED model answers (rules and dice, not a "
        "language model).",
        file=sys.stderr,
    )
    server = ScriptedModels(lambda request: simulate(request.body), models=[MODEL_NAME]).__enter__()
    atexit.register(server.__exit__, None, None, None)
    return server.base_url


def simulate(request: Any) -> Any:
    """Return the simulated model's reply to a chat request.

    Args:
        request: Body of the request. Its messages and its ``seed`` determine the random numbers.
    """
    from agl_scripted import Reply, ToolCall

    messages: list[dict[str, Any]] = request["messages"]
    question = next(m["content"] for m in messages if m["role"] == "user")
    results = [m["content"] for m in messages if m["role"] == "tool"]
    told = json.dumps(messages) + str(request.get("seed"))
    dice = Random(hashlib.sha256(told.encode()).hexdigest())
    if results:
        if results[-1].startswith("error"):
            return Reply("I could not work it out.")
        return Reply(f"The calculator says {results[-1]}.\nAnswer: {results[-1]}")
    expression = _set_up(question, slips=dice.random() < _SLIP)
    if expression is None:
        return Reply("I only know problems about boxes, change, friends and savings.")
    if not request.get("tools") or dice.random() < _GUESS:
        return Reply(
            f"About {dice.randint(100, 900)}, I would say.\nAnswer: {dice.randint(100, 900)}"
        )
    return Reply(tool_calls=[ToolCall("calculate", {"expression": expression})])


def _set_up(question: str, *, slips: bool) -> str | None:
    """Return the formula of a problem, or one that is nearly right."""
    numbers = re.findall(r"\d+", question)
    if "boxes" in question:
        a, b, c = numbers
        return f"{a} * {b} - {c}" if slips else f"({a} - {c}) * {b}"
    if "change" in question:
        a, b, c = numbers
        return f"{a} * {b}" if slips else f"{c} - {a} * {b}"
    if "friends" in question:
        a, b, c = numbers
        return f"({a} + {c}) / {b}" if slips else f"{a} / {b} + {c}"
    if "saves" in question:
        a, b, c = numbers
        return f"{a} + {b} * {c}" if slips else f"{c} * {a} + {b} * {c} * ({c} - 1) / 2"
    return None
