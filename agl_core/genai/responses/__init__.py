"""OpenAI's Responses.

Formats: OpenAI API reference, "Create a model response" and "Responses streaming".
"""

from __future__ import annotations

from typing import ClassVar, Final

from agl_core.genai._protocols import ModelProtocol
from agl_core.genai._wire import Json, named_event
from agl_core.genai.responses._assembly import ResponsesAssembler
from agl_core.genai.responses._request import (
    lost_from_chat,
    lost_to_chat,
    request_from_responses,
    request_to_responses,
)
from agl_core.genai.responses._response import (
    response_from_responses,
    response_lost_from_chat,
    response_lost_to_chat,
    response_to_responses,
)
from agl_core.genai.responses._spans import recorded_request, recorded_response
from agl_core.genai.responses._stream import ChatToResponses, ResponsesToChat
from agl_core.genai.responses._tools import ToolForms

__all__ = ["PROTOCOL"]


class Responses(ModelProtocol):
    """OpenAI's Responses protocol."""

    name = "responses"
    endpoint = "/responses"
    client_span: ClassVar[str | None] = "openai.responses.create"
    translatable = True
    named_events = True

    def is_answer(self, response: Json) -> bool:
        if response.get("status") == "failed":  # its output is empty, or was cut off
            return False
        return isinstance(response.get("output"), list) or response.get("object") == "response"

    def request_to_chat(self, request: Json) -> Json:
        return request_from_responses(request)

    def request_from_chat(self, request: Json) -> Json:
        return request_to_responses(request)

    def response_to_chat(self, response: Json) -> Json:
        return response_from_responses(response)

    def response_from_chat(self, response: Json, request: Json | None = None) -> Json:
        return response_to_responses(response, ToolForms(request))

    def lost_to_chat(self, request: Json) -> list[str]:
        return [*lost_to_chat(request)]

    def lost_from_chat(self, request: Json) -> list[str]:
        return [*lost_from_chat(request)]

    def response_lost_to_chat(self, response: Json) -> list[str]:
        return [*response_lost_to_chat(response)]

    def response_lost_from_chat(self, response: Json) -> list[str]:
        return [*response_lost_from_chat(response)]

    def assembler(self, choices: int = 1) -> ResponsesAssembler:
        return ResponsesAssembler()

    def stream_to_chat(self, *, usage: bool = False) -> ResponsesToChat:
        return ResponsesToChat(usage=usage)

    def stream_from_chat(self, request: Json | None = None) -> ChatToResponses:
        return ChatToResponses(ToolForms(request))

    def error_event(
        self, status: int, message: str, code: str | None, sequence_number: int = 0
    ) -> bytes:
        # OpenAI's clients raise on an ``error`` key in any event; the protocol has the other keys.
        event = {"type": "error", "code": code, "message": message, "param": None}
        body = self.error_body(status, message, code)
        return named_event({**event, **body, "sequence_number": sequence_number})

    def recorded_request(self, request: Json) -> Json:
        return recorded_request(request)

    def recorded_response(self, response: Json) -> Json:
        return recorded_response(response)


PROTOCOL: Final = Responses()
