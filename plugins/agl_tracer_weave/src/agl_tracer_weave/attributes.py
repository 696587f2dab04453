"""Builds the span attributes of Weave's calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from agl_core import semconv
from agl_core.genai import Json, Protocol, get_protocol
from agl_core.otel import flatten_attributes
from agl_tracer_otel import to_jsonable
from agl_tracer_weave.payload import response_to_jsonable
from agl_tracer_weave.streams import StreamRecord

__all__ = [
    "agent_name",
    "input_attributes",
    "nested_attributes",
    "output_attributes",
    "own_inputs",
    "own_output",
    "protocol_of",
]

_CLIENT: Final = "self"
"""Input of a method's op that holds the client object."""

_PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "openai.chat.": "chat",
    "openai.responses.": "responses",
    "anthropic.": "messages",
}
"""Protocols of ops that call a model, by prefix of the op's name. All are recorded as chat."""

_AGENTS: Final[Mapping[str, tuple[str, str]]] = {"crewai.Agent.execute_task": ("self", "role")}
"""Ops that run an agent, and the input and its attribute that hold the agent's name."""


def agent_name(op: str, inputs: Mapping[str, Any]) -> str | None:
    """Return the name of the agent that an op runs, None for other ops.

    Args:
        op: Short name of the op.
        inputs: Its inputs, before the integration turns them into text.
    """
    found = _AGENTS.get(op)
    name = found and getattr(inputs.get(found[0]), found[1], None)
    return None if name is None else str(name)


def own_inputs(inputs: Mapping[str, Any]) -> Json:
    """Return a copy of an op's inputs as JSON, without the client object."""
    return to_jsonable({key: value for key, value in inputs.items() if key != _CLIENT})


def own_output(output: Any) -> Any:
    """Return a copy of an op's output as JSON; the record of a stream is returned itself."""
    return output if isinstance(output, StreamRecord) else response_to_jsonable(output)


def input_attributes(op: str, inputs: Json) -> Json:
    """Return the attributes of a call's inputs.

    Args:
        op: Short name of the op.
        inputs: Its inputs, from :func:`own_inputs`.
    """
    protocol = protocol_of(op)
    values = inputs if protocol is None else get_protocol(protocol).recorded_request(inputs)
    # Tool schemas contain empty objects, which flattening would lose.
    if values.get("tools"):
        values = {**values, "tools": json.dumps(values["tools"])}
    return nested_attributes({semconv.OPERATION_INPUT: values})


def output_attributes(op: str, output: Any) -> Json:
    """Return the attributes of a call's output.

    Args:
        op: Short name of the op.
        output: Its output, from :func:`own_output`; None if there is none.
    """
    if output is None:
        return {}
    if isinstance(output, StreamRecord):
        output = output.response()
    if isinstance(output, dict):
        protocol = protocol_of(op)
        if protocol is not None and output.get("id"):
            output = get_protocol(protocol).recorded_response(output)
        if isinstance(output.get("choices"), list):
            output = {**output, "choices": [_folded(choice) for choice in output["choices"]]}
    return nested_attributes({semconv.OPERATION_OUTPUT: output})


def nested_attributes(values: Json) -> Json:
    """Return JSON as attributes; a list of mixed types, which they cannot hold, becomes text."""
    return flatten_attributes(_one_type(values))


def _one_type(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _one_type(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    kinds = set(map(type, value))
    if kinds & {dict, list}:
        return [_one_type(item) for item in value]
    return json.dumps(value) if len(kinds) > 1 else value


def _folded(choice: Any) -> Any:
    """Fold a choice's log-probabilities into one attribute instead of thousands."""
    logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
    if not isinstance(logprobs, dict) or logprobs.get("content") is None:
        return choice
    return {**choice, "logprobs": {**logprobs, "content": json.dumps(logprobs["content"])}}


def protocol_of(op: str) -> Protocol | None:
    """Return the protocol of a model's call, None for other ops.

    Args:
        op: Short name of the op.
    """
    return next((found for start, found in _PROTOCOLS.items() if op.startswith(start)), None)
