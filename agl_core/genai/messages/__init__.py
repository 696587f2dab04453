"""Anthropic's Messages.

Formats: Anthropic API reference, "Create a Message", "Streaming messages" and "Errors".
"""

from __future__ import annotations

from typing import ClassVar, Final

from agl_core.genai._protocols import ModelProtocol
from agl_core.genai._wire import Json, named_event
from agl_core.genai.messages._request import (
    lost_from_chat,
    lost_to_chat,
    request_from_messages,
    request_to_messages,
)
from agl_core.genai.messages._response import (
    response_from_messages,
    response_lost_from_chat,
    response_lost_to_chat,
    response_to_messages,
)
from agl_core.genai.messages._spans import recorded_request, recorded_response
from agl_core.genai.messages._stream import ChatToMessages, MessagesAssembler, MessagesToChat

__all__ = ["PROTOCOL"]

_ERROR_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class Messages(ModelProtocol):
    """Anthropic's Messages protocol."""

    name = "messages"
    endpoint = "/messages"
    client = "anthropic"
    client_span: ClassVar[str | None] = "anthropic.messages.create"
    translatable = True
    named_events = True

    def is_answer(self, response: Json) -> bool:
        return isinstance(response.get("content"), list)  # an answer may be empty

    def request_to_chat(self, request: Json) -> Json:
        return request_from_messages(request)

    def request_from_chat(self, request: Json) -> Json:
        return request_to_messages(request)

    def response_to_chat(self, response: Json) -> Json:
        return response_from_messages(response)

    def response_from_chat(self, response: Json, request: Json | None = None) -> Json:
        return response_to_messages(response, request)

    def lost_to_chat(self, request: Json) -> list[str]:
        return [*lost_to_chat(request)]

    def lost_from_chat(self, request: Json) -> list[str]:
        return [*lost_from_chat(request)]

    def response_lost_to_chat(self, response: Json) -> list[str]:
        return [*response_lost_to_chat(response)]

    def response_lost_from_chat(self, response: Json) -> list[str]:
        return [*response_lost_from_chat(response)]

    def assembler(self, choices: int = 1) -> MessagesAssembler:
        return MessagesAssembler()

    def stream_to_chat(self, *, usage: bool = False) -> MessagesToChat:
        return MessagesToChat(usage=usage)

    def stream_from_chat(self, request: Json | None = None) -> ChatToMessages:
        return ChatToMessages(request)

    def error_body(self, status: int, message: str, code: str | None) -> Json:
        fallback = "invalid_request_error" if status < 500 else "api_error"
        kind = _ERROR_TYPES.get(status, fallback)
        return {"type": "error", "error": {"type": kind, "message": message}}

    def error_event(
        self, status: int, message: str, code: str | None, sequence_number: int = 0
    ) -> bytes:
        body = self.error_body(status, message, code)
        if code is not None:
            # Anthropic's errors have none, but its clients keep all that an error of a stream has.
            body["error"]["code"] = code
        return named_event(body)

    def recorded_request(self, request: Json) -> Json:
        return recorded_request(request)

    def recorded_response(self, response: Json) -> Json:
        return recorded_response(response)


PROTOCOL: Final = Messages()
