"""Chat completions as most servers send them."""

from __future__ import annotations

from typing import Any, cast

from agl_core.genai._parts import object_at, objects_in
from agl_core.genai._wire import Json

__all__ = ["joined_choices"]


def joined_choices(response: Json) -> Json:
    """Return a completion in which choices without an index are one choice.

    GitHub Copilot answers with the text in one choice and the tool calls in another, none of which
    has an index.
    """
    given: Any = response.get("choices")
    if not isinstance(given, list) or len(cast("list[Any]", given)) < 2:
        return response
    choices = objects_in(cast("list[Any]", given))
    if any(choice.get("index") is not None for choice in choices):
        return response
    whole: Json = {}
    message: Json = {}
    for choice in choices:
        whole |= {key: value for key, value in choice.items() if value is not None}
        for key, value in object_at(choice, "message").items():
            message[key] = _joined(message.get(key), value)
    return {**response, "choices": [{**whole, "index": 0, "message": message}]}


def _joined(first: Any, second: Any) -> Any:
    if type(first) is type(second) is list:
        return [*cast("list[Any]", first), *cast("list[Any]", second)]
    return second or first
