"""OpenAI's chat completions: the hub of translations, and the shape in which calls are recorded.

Format: OpenAI API reference, "Create chat completion".
"""

from __future__ import annotations

from typing import ClassVar, Final

from agl_core.genai._extra import ExtraFields
from agl_core.genai._protocols import ModelProtocol
from agl_core.genai._wire import Json
from agl_core.genai.chat._request import request_extra
from agl_core.genai.chat._response import joined_choices
from agl_core.genai.chat._stream import ChatAssembler

__all__ = ["PROTOCOL"]


class Chat(ModelProtocol):
    """OpenAI's chat protocol."""

    name = "chat"
    endpoint = "/chat/completions"
    client_span: ClassVar[str | None] = "openai.chat.completion"
    translatable = True

    def request_to_chat(self, request: Json) -> Json:
        return request

    def request_from_chat(self, request: Json) -> Json:
        return request

    def response_to_chat(self, response: Json) -> Json:
        return joined_choices(response)

    def recorded_response(self, response: Json) -> Json:
        return joined_choices(response)

    def response_from_chat(self, response: Json, request: Json | None = None) -> Json:
        return response

    def assembler(self, choices: int = 1) -> ChatAssembler:
        return ChatAssembler(choices)

    def request_extra(self, body: Json, wanted: ExtraFields) -> ExtraFields:
        return request_extra(body, wanted, logprobs=self.sampled_logprobs)


PROTOCOL: Final = Chat()
