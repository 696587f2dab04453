"""The span of a call.

Attributes are those of OpenTelemetry's GenAI conventions (opentelemetry.io/docs/specs/semconv/
gen-ai), with the token ids and log-probabilities under the keys that adapters read and with what
only a proxy knows under ``agl.proxy.*``. Prompt and response are written once, in the conventions'
shape: :mod:`agl_core.genai`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agl_core import genai, semconv
from agl_core.genai import Json, Protocol, dumps
from agl_core.ids import new_span_id, new_trace_id

__all__ = ["CallRecord", "parse_traceparent", "span_fields"]

_OPERATIONS: Final[Mapping[Protocol, str]] = {
    "chat": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
_RESOURCE: Final = {"attributes": {"service.name": "agl-proxy"}, "schema_url": ""}


@dataclass(slots=True)
class CallRecord:
    """What is known of a call; filled in as it goes on."""

    protocol: Protocol | None
    """What the agent speaks; None for a call that the proxy only passes on."""
    method: str
    endpoint: str
    start_time: float
    """Epoch seconds."""
    model: str = ""
    """What the agent calls it."""
    request: Json = field(default_factory=dict[str, Any])
    """In the chat protocol, or as it came for completions and embeddings."""
    response: Json | None = None
    """Likewise; partial if the call ended early."""
    streamed: bool = False
    trace_id: str = ""
    parent_id: str | None = None
    span_id: str = field(default_factory=new_span_id)

    backend: str = ""
    backend_protocol: Protocol | None = None
    provider: str = ""
    version: str | None = None
    end_version: str | None = None
    tries: int = 0
    queue_seconds: float = 0.0
    first_token_seconds: float | None = None
    end_time: float = 0.0
    status: int | None = None
    """HTTP status that the agent was answered with."""
    error: str | None = None
    error_type: str | None = None
    lost: list[str] = field(default_factory=list[str])
    """What the translation between the protocols left out of request and response."""
    extra: Json = field(default_factory=dict[str, Any])
    """Further attributes."""


def span_fields(record: CallRecord) -> Json:
    """Return the span as JSON has it, without the ids of rollout, attempt and sequence."""
    trace_id = record.trace_id or new_trace_id()
    error = record.error
    return {
        "trace_id": trace_id,
        "span_id": record.span_id,
        "parent_id": record.parent_id,
        "name": _name(record),
        "status": {"status_code": "OK" if error is None else "ERROR", "description": error},
        "attributes": {**_about_call(record), **_about_model(record), **record.extra},
        "events": [],
        "links": [],
        "start_time": record.start_time,
        "end_time": record.end_time,
        "context": _context(trace_id, record.span_id, remote=False),
        "parent": record.parent_id and _context(trace_id, record.parent_id, remote=True),
        "resource": _RESOURCE,
    }


def parse_traceparent(value: bytes | None) -> tuple[str, str] | None:
    """Return trace id and span id of a ``traceparent`` header (W3C Trace Context), if it is one."""
    if value is None:
        return None
    parts = value.decode("latin-1").split("-")
    if len(parts) < 4 or len(parts[1]) != 32 or len(parts[2]) != 16:
        return None
    try:
        return (parts[1], parts[2]) if int(parts[1], 16) and int(parts[2], 16) else None
    except ValueError:
        return None


def _context(trace_id: str, span_id: str, *, remote: bool) -> Json:
    return {"trace_id": trace_id, "span_id": span_id, "is_remote": remote, "trace_state": {}}


def _name(record: CallRecord) -> str:
    if record.protocol is None:
        return f"{record.method} {record.endpoint}"
    if record.protocol == "embeddings":
        return f"embeddings {record.model}"
    return semconv.SPAN_MODEL_CALL


def _about_call(record: CallRecord) -> Json:
    attributes: Json = {
        "agl.proxy.endpoint": record.endpoint,
        "agl.proxy.tries": record.tries,
        "agl.proxy.backend": record.backend,
        "agl.proxy.backend_protocol": record.backend_protocol,
        "agl.proxy.queue_seconds": record.queue_seconds,
        "gen_ai.provider.name": record.provider,
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.streamed,
        "gen_ai.server.time_to_first_token": record.first_token_seconds,
        "http.response.status_code": record.status,
        "error.type": record.error_type,
        semconv.MODEL_VERSION: record.version,
    }
    if record.protocol is not None:
        attributes["agl.proxy.protocol"] = record.protocol
        attributes["gen_ai.operation.name"] = _OPERATIONS[record.protocol]
    if record.lost:
        attributes["agl.proxy.lost"] = record.lost
    if record.end_version != record.version:
        attributes[semconv.MODEL_VERSION + ".end"] = record.end_version
    return {key: value for key, value in attributes.items() if value is not None and value != ""}


def _about_model(record: CallRecord) -> Json:
    attributes = genai.request_attributes(record.request)
    if record.protocol == "embeddings":
        attributes |= genai.usage_attributes(record.response or {})
    elif record.protocol is not None:
        attributes["gen_ai.input.messages"] = dumps(genai.input_messages(record.request)).decode()
        if record.response is not None:
            attributes |= genai.response_attributes(record.response)
    return attributes
