"""The agent: an ordinary program around an OpenAI client, with one tool.

The framework appears in two places: ``@agl.rollout`` passes the agent a task, the prompt and the
model to call, and the return value is the reward. The model's URL is that of a proxy, which records
each call, so the agent contains no tracing code.
"""

from __future__ import annotations

import functools
import json
import ssl
from typing import Any

from openai import DefaultHttpxClient, OpenAI

import agl_core as agl
from solver import grade
from tasks import ROOMS, BookingTask, clock

__all__ = ["SEED_PROMPT", "TOOLS", "book_room", "seed_resources"]

# The search starts from this prompt: a first draft, written without having seen any failure.
SEED_PROMPT = (
    "You book meeting rooms. Today is {today}. "
    "Look at the rooms with the tool and suggest one that is free and has enough seats."
)

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "list_rooms",
            "description": "List all rooms with capacity, equipment, wheelchair access, and the "
            "times at which they are booked on a date.",
            "parameters": {
                "type": "object",
                "properties": {"date": {"type": "string", "description": "YYYY-MM-DD"}},
                "required": ["date"],
                "additionalProperties": False,
            },
        },
    }
]

_MAX_TURNS = 4


@agl.rollout
def book_room(task: dict[str, Any], prompt_template: agl.PromptTemplate, llm: agl.LLM) -> float:
    """Answer one request for a room; the reward is 1 for the right room, else 0."""
    booking = BookingTask.model_validate(task)
    instructions = prompt_template.format(today=f"{booking.today:%A}, {booking.today}")
    messages: list[Any] = [
        {"role": "system", "content": instructions},
        {"role": "user", "content": booking.request},
    ]
    answer = converse(llm, messages, booking)
    reward, feedback = grade(booking, answer)
    agl.emit_message(feedback)  # for algorithms that learn from text as well as from rewards
    return reward


def converse(llm: agl.LLM, messages: list[Any], booking: BookingTask) -> str:
    """Let the model call the tool until it answers."""
    # The proxy has the key. Loading certificates is slow, so all rollouts share one context.
    http = DefaultHttpxClient(verify=_certificates())
    with OpenAI(base_url=llm.endpoint, api_key="proxied", http_client=http) as client:
        for _ in range(_MAX_TURNS):
            completion = client.chat.completions.create(
                model=llm.model, messages=messages, tools=TOOLS, temperature=0
            )
            message = completion.choices[0].message.model_dump(mode="json", exclude_none=True)
            messages.append(message)
            if not message.get("tool_calls"):
                return message.get("content") or ""
            for call in message["tool_calls"]:
                result = list_rooms(booking, call["function"]["arguments"])
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return ""


def list_rooms(booking: BookingTask, arguments: str) -> str:
    """Answer the model's tool call; a wrong call gets an error text for the model."""
    try:
        day = json.loads(arguments)["date"]
    except (ValueError, KeyError, TypeError):
        return json.dumps({"error": "list_rooms takes one argument, date: YYYY-MM-DD"})
    rooms = [
        {
            "id": room.id,
            "capacity": room.capacity,
            "equipment": room.equipment,
            "accessible": room.accessible,
            "booked": [
                [clock(taken.start), clock(taken.end)]
                for taken in booking.bookings
                if taken.room == room.id and taken.day.isoformat() == day
            ],
        }
        for room in ROOMS
    ]
    return json.dumps({"date": day, "rooms": rooms})


@functools.cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


def seed_resources() -> agl.NamedResources:
    """Return the first resources of a training run."""
    return {"prompt": agl.PromptTemplate(template=SEED_PROMPT, engine="f-string")}
