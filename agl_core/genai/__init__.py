"""The wire vocabulary of model APIs, shared by tracers, adapters, proxies and model servers.

This package handles HTTP bodies and paths; it does not use stores, tracers or OpenTelemetry spans:

* protocols: which API a path belongs to (:data:`Protocol`, :func:`parse_path`);
* wire format: JSON and server-sent events as bytes (:func:`loads`, :func:`dumps`,
  :class:`SseSplitter`);
* attributes: requests and responses in OpenTelemetry's GenAI conventions
  (:func:`request_attributes`, :func:`response_attributes`), and calls of other protocols read as
  chat for them (:func:`request_as_chat`, :func:`response_as_chat`);
* :mod:`agl_core.genai.streams`: a stream's events assembled into one response.
"""

from typing import TYPE_CHECKING

from agl_core.genai._protocols import ENDPOINTS, PROTOCOLS, Protocol, Route, parse_path
from agl_core.genai._wire import (
    DONE,
    Json,
    ServerSentEvent,
    SseSplitter,
    dumps,
    event_bytes,
    loads,
    named_event,
)
from agl_core.lazy import lazy_names

if TYPE_CHECKING:
    from agl_core.genai._as_chat import request_as_chat, response_as_chat
    from agl_core.genai._attributes import (
        input_messages,
        message_parts,
        output_messages,
        request_attributes,
        response_attributes,
        usage_attributes,
        without_secrets,
    )

__all__ = [
    "DONE",
    "ENDPOINTS",
    "PROTOCOLS",
    "Json",
    "Protocol",
    "Route",
    "ServerSentEvent",
    "SseSplitter",
    "dumps",
    "event_bytes",
    "input_messages",
    "loads",
    "message_parts",
    "named_event",
    "output_messages",
    "parse_path",
    "request_as_chat",
    "request_attributes",
    "response_as_chat",
    "response_attributes",
    "usage_attributes",
    "without_secrets",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "input_messages": "agl_core.genai._attributes",
        "message_parts": "agl_core.genai._attributes",
        "output_messages": "agl_core.genai._attributes",
        "request_as_chat": "agl_core.genai._as_chat",
        "request_attributes": "agl_core.genai._attributes",
        "response_as_chat": "agl_core.genai._as_chat",
        "response_attributes": "agl_core.genai._attributes",
        "usage_attributes": "agl_core.genai._attributes",
        "without_secrets": "agl_core.genai._attributes",
    },
)
