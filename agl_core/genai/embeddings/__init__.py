"""OpenAI's embeddings, which have neither messages nor streams."""

from __future__ import annotations

from typing import Final

from agl_core.genai._protocols import ModelProtocol
from agl_core.genai._wire import Json

__all__ = ["PROTOCOL"]


class Embeddings(ModelProtocol):
    """OpenAI's protocol of embeddings."""

    name = "embeddings"
    endpoint = "/embeddings"
    operation = "embeddings"
    has_messages = False

    def is_answer(self, response: Json) -> bool:
        return isinstance(response.get("data"), list)


PROTOCOL: Final = Embeddings()
