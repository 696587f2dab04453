"""Errors of a call, and their form in each protocol.

Formats: OpenAI API reference, "Errors"; Anthropic API reference, "Errors".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from agl_core.genai import Protocol, dumps, event_bytes, loads, named_event

__all__ = ["CallError", "error_body", "error_event", "translate_error"]

HeaderList = Sequence[tuple[bytes, bytes]]

_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_OPENAI_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class CallError(Exception):
    """Ends a call with an error in the caller's own protocol.

    Args:
        status: HTTP status.
        message: The problem and its remedy, for the caller.
        code: Machine-readable code; also the span's ``error.type``.
        headers: Further headers of the response, e.g. ``retry-after``.
    """

    def __init__(self, status: int, message: str, code: str, headers: HeaderList = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.headers = headers


def error_body(
    protocol: Protocol | None, status: int, message: str, code: str | None
) -> dict[str, Any]:
    """Return the JSON of an error in the caller's protocol."""
    if protocol == "messages":
        fallback = "invalid_request_error" if status < 500 else "api_error"
        kind = _ANTHROPIC_TYPES.get(status, fallback)
        return {"type": "error", "error": {"type": kind, "message": message}}
    fallback = "invalid_request_error" if status < 500 else "server_error"
    kind = _OPENAI_TYPES.get(status, fallback)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_event(protocol: Protocol | None, error: CallError, sequence_number: int = 0) -> bytes:
    """Return the event that reports an error in a stream that has begun."""
    if protocol == "messages":
        return named_event(error_body("messages", error.status, error.message, error.code))
    body = error_body(protocol, error.status, error.message, error.code)
    if protocol == "responses":
        # OpenAI's clients raise on an ``error`` key in any event; the protocol has the other keys.
        event = {"type": "error", "code": error.code, "message": error.message, "param": None}
        return named_event({**event, **body, "sequence_number": sequence_number})
    return event_bytes(body)  # no [DONE]: a truncated stream must not look complete


def translate_error(source: Protocol, target: Protocol | None, status: int, body: bytes) -> bytes:
    """Return a backend's error in the caller's protocol; unchanged if the two share a form."""
    if (source == "messages") == (target == "messages"):
        return body
    message, code = body.decode("utf-8", "replace")[:2000], None
    try:
        parsed = loads(body)
    except ValueError:
        parsed = None
    if isinstance(parsed, dict):
        found = cast("dict[str, Any]", parsed)
        inner = found.get("error", found)
        if isinstance(inner, dict):
            details = cast("dict[str, Any]", inner)
            message = str(details.get("message") or details.get("detail") or message)
            code = details.get("code") or details.get("type")
        elif isinstance(inner, str):
            message = inner
    return dumps(error_body(target, status, message, None if code is None else str(code)))
