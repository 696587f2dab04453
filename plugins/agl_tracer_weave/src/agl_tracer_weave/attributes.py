"""Weave's calls as attributes of spans."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from agl_core import semconv
from agl_core.otel.attributes import flatten_attributes
from agl_core.proxy.codec import translate_request, translate_response
from agl_core.proxy.protocols import Protocol

__all__ = ["Json", "agent_name", "input_attributes", "output_attributes", "plain"]

Json = dict[str, Any]

_ABSENT: Final = frozenset({"NotGiven", "Omit"})  # what client libraries have for left-out values
_CLIENT: Final = "self"
"""Ops that are methods of a client have it among their inputs."""

_PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "openai.responses.": "responses",
    "anthropic.Messages.": "messages",
    "anthropic.AsyncMessages.": "messages",
}
"""Ops that are calls in another protocol than chat, which they are written down in."""


_AGENTS: Final[Mapping[str, tuple[str, str]]] = {"crewai.Agent.execute_task": ("self", "role")}
"""Ops that run an agent, with the input that knows its name and that input's attribute."""


def agent_name(op: str, inputs: Mapping[str, Any]) -> str | None:
    """Return the name of the agent that an op runs, None for other ops.

    Args:
        op: Short name of the op.
        inputs: Its inputs, before the integration has made text of them.
    """
    found = _AGENTS.get(op)
    name = found and getattr(inputs.get(found[0]), found[1], None)
    return None if name is None else str(name)


def plain(value: Any) -> Any:
    """Return a value as JSON has it; what JSON has nothing for becomes text."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if type(v).__name__ not in _ABSENT}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Iterable) and not isinstance(value, (bytes, bytearray)):
        items = [plain(item) for item in value]
        kinds = set(map(type, items))
        # One attribute has items of one type.
        return json.dumps(items) if len(kinds) > 1 and not kinds & {dict, list} else items
    return str(value)


def input_attributes(op: str, inputs: Mapping[str, Any]) -> Json:
    """Return the attributes of a call's inputs.

    Args:
        op: Short name of the op.
        inputs: Its inputs by name.
    """
    values = plain({key: value for key, value in inputs.items() if key != _CLIENT})
    protocol = _protocol(op)
    if protocol is not None:
        values = translate_request(protocol, "chat", values)
    # Schemas of tools have empty parts, which flattening would lose.
    if values.get("tools"):
        values["tools"] = json.dumps(values["tools"])
    return flatten_attributes({semconv.OPERATION_INPUT: values})


def output_attributes(op: str, output: Any) -> Json:
    """Return the attributes of what a call returned.

    Args:
        op: Short name of the op.
        output: What it returned; None for nothing.
    """
    if output is None:
        return {}
    value = plain(output)
    if isinstance(value, dict):
        protocol = _protocol(op)
        if protocol is not None and value.get("id"):
            value = translate_response(protocol, "chat", value)
        _fold_logprobs(value)
    return flatten_attributes({semconv.OPERATION_OUTPUT: value})


def _fold_logprobs(response: Json) -> None:
    """Make one attribute of a choice's log-probabilities, which are many small ones otherwise."""
    choices = response.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
        if isinstance(logprobs, dict) and logprobs.get("content") is not None:
            logprobs["content"] = json.dumps(logprobs["content"])


def _protocol(op: str) -> Protocol | None:
    return next((found for start, found in _PROTOCOLS.items() if op.startswith(start)), None)
