"""The agent: it sends a mail to one of four teams, whose names only the house knows."""

from __future__ import annotations

import functools
from random import Random
from typing import Any

from openai import AzureOpenAI

import agl_core as agl

__all__ = ["TASKS", "client", "guess", "route"]

_TEAMS = {
    "falcon": ("My invoice is wrong.", "I was charged twice.", "Where is my refund?"),
    "otter": ("The app crashes.", "I cannot log in.", "The page stays empty."),
    "heron": ("My parcel is late.", "The box was open.", "Please change my address."),
    "badger": ("Can I get a quote?", "Do you sell to schools?", "Is there a discount?"),
}
TASKS = [{"mail": mail, "team": team} for team, mails in _TEAMS.items() for mail in mails]
_dice = Random(0)


@agl.rollout
def route(task: dict[str, Any], llm: agl.LLM) -> float:
    """Name the team; 1 for the right one, else 0."""
    completion = client(llm.endpoint, llm.api_key or "").chat.completions.create(
        model=llm.model, messages=[{"role": "user", "content": question(task)}]
    )
    return float((completion.choices[0].message.content or "").strip() == task["team"])


def question(task: dict[str, Any]) -> str:
    return f"{task['mail']} Which team: {', '.join(_TEAMS)}? Answer with its name."


@functools.cache
def client(endpoint: str, key: str) -> AzureOpenAI:
    # One client for all rollouts: creating a client loads the certificates.
    return AzureOpenAI(azure_endpoint=endpoint, api_key=key, api_version="2024-10-21")


def guess(asked: str) -> str:
    """Answer as a base model does that knows nothing of the house."""
    return _dice.choice(list(_TEAMS))
