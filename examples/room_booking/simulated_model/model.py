"""The simulated model as a function from a chat request to a message."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from random import Random
from typing import Any

from simulated_model.booker import book, resolve_day
from simulated_model.editor import criticise, edit, what_is_asked

__all__ = ["MODEL_NAME", "SimulatedModel"]

MODEL_NAME = "simulated-room-booker"
Message = dict[str, Any]


class SimulatedModel:
    """Answers chat requests by rules and a seeded random generator; see the package's docstring.

    Args:
        seed: Seed of slips and proposals.
        slip: Probability of forgetting a rule, per rule and answer.

    Not thread-safe: one event loop serves it.
    """

    def __init__(self, seed: int = 0, slip: float = 0.02) -> None:
        self._seed = seed
        self._slip = slip
        self._asked: Counter[str] = Counter()

    def reply(self, request: dict[str, Any]) -> Message:
        """Return the assistant's message to a chat completion request."""
        messages: list[Message] = request["messages"]
        seed = self._seed if request.get("seed") is None else int(request["seed"])
        if request.get("tools") or any(message["role"] == "tool" for message in messages):
            return self._book(messages, request.get("tools") or [], seed)
        return {"role": "assistant", "content": self._write(messages, request)}

    def _book(self, messages: list[Message], tools: list[Any], seed: int) -> Message:
        instructions, request = _text(messages, "system", "developer"), _text(messages, "user")
        last = messages[-1]
        if last["role"] != "tool" and tools and request:
            # Without today's date the model has to guess a relative day.
            day = resolve_day(request, instructions)
            arguments = {"date": day.isoformat() if day else "2026-01-01"}
            return _tool_call(tools[0]["function"]["name"], arguments, messages)
        rooms = _read_rooms(_content(last)) if last["role"] == "tool" else []
        if not rooms:
            answer = "I cannot see any rooms, so I cannot book one."
        else:
            answer = book(instructions, request, rooms, seed=seed, slip=self._slip)
        return {"role": "assistant", "content": answer}

    def _write(self, messages: list[Message], request: dict[str, Any]) -> str:
        """Write a critique or an edit; a repeated request gets new random numbers.

        With ``seed`` in the request, a repeated request gets the same answer.
        """
        system, user = _text(messages, "system", "developer"), _text(messages, "user")
        key = hashlib.sha256(f"{system}\0{user}\0{request.get('seed')}".encode()).hexdigest()
        draw = 0
        if request.get("seed") is None:
            draw = self._asked[key]
            self._asked[key] += 1
        dice = Random(f"{self._seed}|{key}|{draw}")
        match what_is_asked(system, user):
            case "edit":
                return edit(f"{system}\n{user}", dice)
            case "critique":
                return criticise(f"{system}\n{user}", dice)
            case _:
                return "I am a simulated model: I book rooms with a tool, and I edit prompts."


def _tool_call(name: str, arguments: dict[str, Any], messages: list[Message]) -> Message:
    digest = hashlib.sha256(json.dumps(messages, sort_keys=True).encode()).hexdigest()
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": f"call_{digest[:20]}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def _read_rooms(content: str) -> list[dict[str, Any]]:
    """Return the rooms in a tool's result; empty if it holds anything else."""
    try:
        rooms = json.loads(content)["rooms"]
    except (ValueError, KeyError, TypeError):
        return []
    return rooms if isinstance(rooms, list) else []


def _text(messages: list[Message], *roles: str) -> str:
    return "\n".join(_content(message) for message in messages if message["role"] in roles)


def _content(message: Message) -> str:
    """Return a message's text; its content is a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")
