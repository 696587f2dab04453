"""Model requests in a form in which a recorded one and a new one can be compared.

A span holds a request in OpenTelemetry's GenAI attributes. A new request is converted by the same
functions, so that equal requests are equal values, in whichever protocol the agent speaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from agl_core import genai
from agl_core.genai import MALFORMED, Json, Protocol, get_protocol

__all__ = ["Recorder", "canonical_request", "recorded_request"]

Recorder = Literal["proxy", "tracer"]
"""The component that recorded a call."""

_PARAMETER: Final = "gen_ai.request."
_MODEL: Final = "gen_ai.request.model"
_STREAM: Final = "gen_ai.request.stream"
_TOOLS: Final = "gen_ai.tool.definitions"
_MESSAGES: Final = "gen_ai.input.messages"
_RAW: Final = "agl.proxy.raw_request"


def canonical_request(protocol: Protocol, request: Mapping[str, Any]) -> Json:
    """Return a request of an agent for a comparison with :func:`recorded_request`."""
    body: Json = dict(request)
    try:
        chat = get_protocol(protocol).recorded_request(body)
    except MALFORMED:
        return {"request": _plain(genai.without_secrets(body))}
    return _canonical(
        body.get("model"),
        bool(body.get("stream")),
        genai.request_attributes(chat),
        genai.input_messages(chat),
    )


def recorded_request(attributes: Mapping[str, Any]) -> Json:
    """Return the request in a span's attributes."""
    raw = attributes.get(_RAW)
    if isinstance(raw, str):
        return {"request": genai.loads(raw.encode())}
    messages = attributes.get(_MESSAGES)
    parsed = genai.loads(messages.encode()) if isinstance(messages, str) else []
    return _canonical(attributes.get(_MODEL), bool(attributes.get(_STREAM)), attributes, parsed)


def _canonical(
    model: Any, streamed: bool, attributes: Mapping[str, Any], messages: list[Json]
) -> Json:
    parameters = {
        key.removeprefix(_PARAMETER): _value(value)
        for key, value in attributes.items()
        if key.startswith(_PARAMETER) and key not in (_MODEL, _STREAM)
    }
    return {
        "model": model,
        "stream": streamed,
        "parameters": parameters,
        "tools": _value(attributes.get(_TOOLS)) or [],
        "messages": _plain(messages),
    }


def _value(value: Any) -> Any:
    """Return the value of an attribute; JSON text of a list or an object as that value."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return genai.loads(value.encode())
        except ValueError:
            return value
    return value


def _plain(value: Any) -> Any:
    """Return a value as its JSON is read back: recorded messages have passed through JSON."""
    return cast("Any", genai.loads(genai.dumps(value)))
