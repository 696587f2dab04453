"""Assembly of text completion streams.

Format: OpenAI API reference, "Completions"; vLLM's ``return_token_ids`` puts the prompt's ids on
the choice.
"""

from __future__ import annotations

from agl_core.genai._wire import Json
from agl_core.genai.chat._stream import OpenAIAssembler, PartialChoice

__all__ = ["CompletionAssembler"]


class CompletionAssembler(OpenAIAssembler):
    """Assembles ``text_completion`` chunks to a ``text_completion``."""

    object_name = "text_completion"

    def _add(self, known: PartialChoice, choice: Json) -> None:
        text: str = choice.get("text") or ""
        self.started = self.started or text != ""
        known.text.setdefault("text", []).append(text)
        if choice.get("prompt_token_ids") is not None:
            known.other["prompt_token_ids"] = choice["prompt_token_ids"]

    def _choice(self, known: PartialChoice) -> Json:
        return {"text": "".join(known.text.get("text", ())), **known.shared()}
