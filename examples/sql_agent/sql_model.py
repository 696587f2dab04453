"""Selects the model by environment variables, as any OpenAI client does.

With ``OPENAI_BASE_URL`` or ``OPENAI_API_KEY`` set, the model is at that endpoint, and
``OPENAI_MODEL`` is its name. With neither set, a SIMULATED model starts in this process and reports
that it is simulated. It is not a language model: rules answer the known kinds of questions. In a
third of first tries a column is misspelled, which the next try corrects; a sixth of the queries
stay wrong.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import re
import sys
import threading
from random import Random
from typing import Any

import agl_core as agl
from sql_tasks import TEMPLATES

__all__ = ["FROM_ENVIRONMENT", "MODEL_NAME", "endpoint_of", "simulate"]

FROM_ENVIRONMENT = "environment"
"""Endpoint of a resource for which the environment variables select the model."""
MODEL_NAME = "simulated-sql-writer"
_DEFAULT_MODEL = "gpt-4.1-mini"
_MISSPELLS = 1 / 3
_WRONG = 1 / 6
_starting = threading.Lock()


def endpoint_of(llm: agl.LLM) -> tuple[str | None, str, str]:
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
        request: Body of the request. Its question and its ``seed`` determine the random numbers.
    """
    from agl_scripted import Reply

    messages = request["messages"]
    asked = next(m["content"] for m in messages if m["role"] == "user")
    question = asked.rpartition("Question: ")[2].strip()
    sql = _query(question)
    if sql is None:
        return Reply("I only know questions about shops, libraries and schools.")
    dice = Random(hashlib.sha256(f"{question}{request.get('seed')}".encode()).hexdigest())
    if dice.random() < _WRONG:
        sql = (
            re.sub(r"COUNT\(\*\)", "COUNT(*) + 1", sql).replace(" = '", " != '").replace("DESC", "")
        )
    if dice.random() < _MISSPELLS and len(messages) == 2:  # the first try, before any error
        sql = re.sub(r"\b(name|title|city|points|price)\b", r"\1s", sql, count=1)
    return Reply(f"```sql\n{sql}\n```")


def _query(question: str) -> str | None:
    for template in TEMPLATES:
        pattern = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+)", re.escape(template.question))
        found = re.fullmatch(pattern, question)
        if found:
            return template.sql.format(**found.groupdict())
    return None
