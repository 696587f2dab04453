"""The task of all four agents: what to pack for a city, with a tool that knows the weather."""

from __future__ import annotations

from typing import Any

import agl_core as agl

__all__ = ["PROMPTS", "TASKS", "look_up", "question", "reward"]

WEATHER = {
    "Athens": "sun",
    "Bergen": "rain",
    "Cairo": "sun",
    "Dublin": "rain",
    "Lagos": "rain",
    "Lima": "sun",
}
NEEDED = {"sun": "sunglasses", "rain": "umbrella"}

TASKS: list[dict[str, Any]] = [{"city": city} for city in WEATHER]

PROMPTS = {
    "short": "Say what to pack: umbrella or sunglasses. Answer with one word.",
    "tool": "Look up the weather first. Then say what to pack: umbrella or sunglasses. "
    "Answer with one word.",
}


def question(task: dict[str, Any]) -> str:
    return f"I travel to {task['city']} tomorrow."


@agl.operation(name="look_up")
def look_up(city: str) -> str:
    """Return the weather of a city; each call is in the trace, whichever framework makes it."""
    return WEATHER.get(city, f"no such city: {city}")


def reward(task: dict[str, Any], answer: str) -> float:
    """Return 1 if the answer names the right thing and not the other, else 0."""
    said = {thing for thing in NEEDED.values() if thing in answer.lower()}
    return float(said == {NEEDED[WEATHER[task["city"]]]})
