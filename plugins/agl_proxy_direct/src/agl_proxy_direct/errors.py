"""Errors of a call, and their form in each protocol.

Formats: OpenAI API reference, "Errors"; Anthropic API reference, "Errors".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agl_core.genai import Protocol, dumps, get_protocol, loads

__all__ = ["CallError", "error_body", "error_event", "error_in", "translate_error"]

HeaderList = Sequence[tuple[bytes, bytes]]


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
    """Return the JSON of an error in the caller's protocol; in OpenAI's form if it is unknown."""
    return get_protocol(protocol or "chat").error_body(status, message, code)


def error_event(protocol: Protocol | None, error: CallError, sequence_number: int = 0) -> bytes:
    """Return the event that reports an error in a stream that has begun."""
    spoken = get_protocol(protocol or "chat")
    return spoken.error_event(error.status, error.message, error.code, sequence_number)


def error_in(answer: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return message and status of an error within a response of status 200; None for an answer.

    Gateways such as OpenRouter send ``{"error": {"message", "code"}}`` once they have answered with
    200. A failed response of Responses has an error and is an answer: it has an ``object``.
    """
    error = answer.get("error")
    if not error or any(answer.get(key) for key in ("choices", "content", "output", "object")):
        return None
    message, status = "", 502
    if isinstance(error, dict):
        details = cast("dict[str, Any]", error)
        code: Any = details.get("code") or details.get("status")
        status = int(code) if str(code).isdecimal() and 400 <= int(code) < 600 else 502
        message = str(details.get("message") or details)
    return message or str(error), status


def translate_error(source: Protocol, target: Protocol | None, status: int, body: bytes) -> bytes:
    """Return a backend's error in the caller's protocol; unchanged if the two share a form."""
    forms = [type(get_protocol(name or "chat")).error_body for name in (source, target)]
    if forms[0] is forms[1]:
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
