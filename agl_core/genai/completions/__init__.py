"""OpenAI's text completions.

Format: OpenAI API reference, "Completions". A prompt without messages has no equivalent in other
protocols, so calls are not translated.
"""

from __future__ import annotations

from typing import ClassVar, Final

from agl_core.genai._extra import ExtraFields
from agl_core.genai._protocols import ModelProtocol
from agl_core.genai._wire import Json
from agl_core.genai.chat._request import request_extra
from agl_core.genai.completions._stream import CompletionAssembler

__all__ = ["PROTOCOL"]


class Completions(ModelProtocol):
    """OpenAI's text completion protocol."""

    name = "completions"
    endpoint = "/completions"
    operation = "text_completion"
    client_span: ClassVar[str | None] = "openai.completion"

    def assembler(self, choices: int = 1) -> CompletionAssembler:
        return CompletionAssembler(choices)

    def request_extra(self, body: Json, wanted: ExtraFields) -> ExtraFields:
        return request_extra(body, wanted, logprobs=0)  # 0: of the sampled token alone


PROTOCOL: Final = Completions()
