"""The span of a proxied call.

Its attributes are those of OpenTelemetry's GenAI conventions (opentelemetry.io/docs/specs/semconv/
gen-ai), see :func:`agl_core.genai.request_attributes`. Token ids and log-probabilities are under
the keys that adapters read. ``agl.proxy.*`` holds what only the proxy knows: backend, tries, time
in the queue.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, cast

from agl_core import genai, semconv
from agl_core.genai import MALFORMED, Json, Protocol, dumps, get_protocol
from agl_core.ids import new_span_id, new_trace_id
from agl_core.store import MAX_SPAN_ATTRIBUTES

__all__ = ["CallRecord", "parse_traceparent", "span_fields"]

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_LARGEST: Final = 2**63 - 1
"""OpenTelemetry's integers are signed and have 64 bits."""
_MAX_ATTRIBUTES: Final = MAX_SPAN_ATTRIBUTES // 4
"""Of a request or a response; one with more becomes JSON text in one attribute."""
_RESOURCE: Final = {"attributes": {"service.name": "agl-proxy"}, "schema_url": ""}


@dataclass(slots=True)
class CallRecord:
    """The facts about a call, filled in while it is served."""

    protocol: Protocol | None
    """The agent's protocol; None for a call that is passed through."""
    method: str
    endpoint: str
    start_time: float
    """Epoch seconds."""
    model: str = ""
    """The model's name for agents."""
    request: Json = field(default_factory=dict[str, Any])
    """In the chat protocol; completions and embeddings unchanged."""
    response: Json | None = None
    """In the same protocol as the request; partial if the call ended early."""
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
    """HTTP status of the response to the agent."""
    error: str | None = None
    error_type: str | None = None
    lost: list[str] = field(default_factory=list[str])
    """Names of fields that the translation of request and response left out."""
    extra: Json = field(default_factory=dict[str, Any])
    """Further attributes."""

    def forget_response(self, extra: Json) -> None:
        """Drop what an earlier try has left of its response.

        Args:
            extra: The further attributes before the first try.
        """
        self.response = self.end_version = self.first_token_seconds = None
        self.extra = dict(extra)


def span_fields(record: CallRecord) -> Json:
    """Return the JSON fields of the span, without the ids of rollout, attempt and sequence."""
    trace_id = record.trace_id or new_trace_id()
    error = record.error
    return {
        "trace_id": trace_id,
        "span_id": record.span_id,
        "parent_id": record.parent_id,
        "name": _name(record),
        "status": {"status_code": "OK" if error is None else "ERROR", "description": error},
        "attributes": {
            key: _attribute(value)
            for key, value in {
                **_call_attributes(record),
                **_model_attributes(record),
                **record.extra,
            }.items()
        },
        "events": [],
        "links": [],
        "start_time": record.start_time,
        "end_time": record.end_time,
        "context": _context(trace_id, record.span_id, remote=False),
        "parent": record.parent_id and _context(trace_id, record.parent_id, remote=True),
        "resource": _RESOURCE,
    }


def parse_traceparent(value: bytes | None) -> tuple[str, str] | None:
    """Return trace id and span id of a ``traceparent`` header (W3C Trace Context), or None."""
    found = _TRACEPARENT.match((value or b"").decode("latin-1"))
    if found is None or set(found[1]) == {"0"} or set(found[2]) == {"0"}:
        return None
    return found[1], found[2]


def _context(trace_id: str, span_id: str, *, remote: bool) -> Json:
    return {"trace_id": trace_id, "span_id": span_id, "is_remote": remote, "trace_state": {}}


def _name(record: CallRecord) -> str:
    if record.protocol is None:
        return f"{record.method} {record.endpoint}"
    protocol = get_protocol(record.protocol)
    if not protocol.has_messages:
        return f"{protocol.operation} {record.model}"
    return semconv.SPAN_MODEL_CALL


def _call_attributes(record: CallRecord) -> Json:
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
        attributes["gen_ai.operation.name"] = get_protocol(record.protocol).operation
    if record.lost:
        attributes["agl.proxy.lost"] = record.lost
    if record.end_version != record.version:
        attributes[semconv.MODEL_VERSION + ".end"] = record.end_version
    return {key: value for key, value in attributes.items() if value is not None and value != ""}


def _model_attributes(record: CallRecord) -> Json:
    """Return the attributes of request and response.

    Either may have other types than its protocol, whose server then refuses or ignores them. The
    span holds such a request or response as JSON text.
    """
    found: Json = {}
    has_messages = record.protocol is not None and get_protocol(record.protocol).has_messages
    try:
        found |= _bounded(genai.request_attributes(record.request))
        if has_messages:
            messages = genai.input_messages(record.request)
            found["gen_ai.input.messages"] = dumps(messages).decode()
    except MALFORMED as error:
        found |= _raw("request", record.request, error)
    if record.response is None or record.protocol is None:
        return found
    try:
        if has_messages:
            found |= _bounded(genai.response_attributes(record.response))
        else:
            found |= genai.usage_attributes(record.response)
    except MALFORMED as error:
        found |= _raw("response", record.response, error)
    return found


def _bounded(attributes: Json) -> Json:
    if len(attributes) > _MAX_ATTRIBUTES:
        raise ValueError(f"{len(attributes)} attributes")
    return attributes


def _raw(what: str, value: Json, error: Exception) -> Json:
    return {
        f"agl.proxy.raw_{what}": dumps(genai.without_secrets(value)).decode(),
        "agl.proxy.codec_error": f"{type(error).__name__}: {error!s:.200}",
    }


def _attribute(value: Any) -> Any:
    """Return a value as an attribute; what OpenTelemetry does not have becomes JSON text."""
    if isinstance(value, (str, bool)):
        return value
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    kinds = set(map(type, items))
    if kinds <= {str} or kinds <= {bool}:
        return value
    if kinds == {int} and min(items) >= -_LARGEST and max(items) <= _LARGEST:
        return value
    if kinds == {float} and all(map(math.isfinite, items)):
        return value
    return dumps(value).decode()
