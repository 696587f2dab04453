"""The task and the tool of all agents in this package."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["ANTHROPIC_TOOL", "INSTRUCTIONS", "MODEL", "OPENAI_TOOL", "WEATHER", "get_weather"]

MODEL: Final = "gpt-4.1-mini-2025-04-14"
"""A model name that every framework knows; the server is scripted."""
INSTRUCTIONS: Final = "You tell the weather. Use the tool."
WEATHER: Final = {"Paris": "sunny", "Oslo": "rain"}


def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return WEATHER[city]


_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
OPENAI_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather in a city.",
        "parameters": _PARAMETERS,
    },
}
ANTHROPIC_TOOL: Final[dict[str, Any]] = {
    "name": "get_weather",
    "description": "Tell the weather in a city.",
    "input_schema": _PARAMETERS,
}
