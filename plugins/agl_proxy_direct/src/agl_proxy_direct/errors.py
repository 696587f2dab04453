"""Errors of a call, and their form in each protocol.

Formats: OpenAI API reference, "Errors"; Anthropic API reference, "Errors".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from agl_core.genai import Protocol, dumps, get_protocol, loads

__all__ = ["CallError", "error_body", "error_event", "error_in", "translate_error"]

HeaderList = Sequence[tuple[bytes, bytes]]

_OF_THE_REQUEST: Final = (
    "bio_policy",
    "data_residency_mismatch",
    "empty_image_file",
    "failed_to_download_image",
    "image_content_policy_violation",
    "image_file_not_found",
    "image_file_too_large",
    "image_parse_error",
    "image_too_large",
    "image_too_small",
    "invalid_base64_image",
    "invalid_image",
    "invalid_image_format",
    "invalid_image_mode",
    "invalid_image_url",
    "invalid_prompt",
    "misalignment_policy_violation",
    "unsupported_image_media_type",
)
_STATUSES: Final = {**dict.fromkeys(_OF_THE_REQUEST, 400), "rate_limit_exceeded": 429}
"""Statuses of the codes of a failed response. Any other code is a fault of the backend; these are
not, so they must not keep calls from it."""


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


def error_in(answer: dict[str, Any], protocol: Protocol) -> tuple[str, int] | None:
    """Return message and status of an error within a response of status 200; None for an answer.

    Gateways such as OpenRouter send ``{"error": {"message", "code"}}`` once they have answered with
    200, also within a choice; vLLM before 0.10 sends ``{"object": "error", "message", "code"}``,
    MiniMax ``{"choices": null, "base_resp": {"status_msg"}}``, OpenAI's Responses
    ``{"status": "failed", "error": {"code", "message"}}``.
    """
    error: Any = answer.get("error") or answer
    if get_protocol(protocol).is_answer(answer):
        failed = _failed_choice(answer.get("choices"))
        if failed is None:
            return None
        error = failed.get("error") or "the backend ended the answer with an error"
    if not isinstance(error, dict):
        return str(error), 502
    details = cast("dict[str, Any]", error)
    code: Any = details.get("code") or details.get("status")
    status = int(code) if str(code).isdecimal() else _STATUSES.get(str(code), 502)
    status = status if 400 <= status < 600 else 502
    return _message_of(details) or str(details)[:2000], status


def _failed_choice(choices: Any) -> dict[str, Any] | None:
    for choice in cast("list[Any]", choices) if isinstance(choices, list) else ():
        if isinstance(choice, dict) and choice.get("finish_reason") == "error":
            return cast("dict[str, Any]", choice)
    return None


def _message_of(details: Mapping[str, Any]) -> str:
    inner: Any = details.get("base_resp")
    told = cast("dict[str, Any]", inner).get("status_msg") if isinstance(inner, dict) else None
    return str(details.get("message") or details.get("msg") or details.get("detail") or told or "")


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
    if isinstance(parsed, list) and parsed:  # Gemini's endpoint for OpenAI's clients
        parsed = cast("list[Any]", parsed)[0]
    if isinstance(parsed, dict):
        found = cast("dict[str, Any]", parsed)
        inner = found.get("error", found)
        if isinstance(inner, dict):
            details = cast("dict[str, Any]", inner)
            message = _message_of(details) or message
            code = details.get("code") or details.get("type")
        elif isinstance(inner, str):
            message = inner
    return dumps(error_body(target, status, message, None if code is None else str(code)))
