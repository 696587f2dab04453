"""Fields that a proxy requests from a backend in addition to what the agent requested.

Token ids and log-probabilities cannot be obtained after a call, so a proxy requests them with every
call that it records. An agent that did not request them gets the same response as without the
proxy: :meth:`ExtraFields.strip` removes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from agl_core.genai._wire import Json

__all__ = ["NO_EXTRA_FIELDS", "ExtraFields"]


@dataclass(frozen=True, slots=True)
class ExtraFields:
    """Fields of a response: those to request, or those that the agent did not request.

    Attributes:
        token_ids: Token ids of prompt and response, as vLLM returns them.
        logprobs: Log-probability of each sampled token.
        usage: The last chunk of a stream, which has usage and no choice. Usage beside a choice
            is that of a server that always sends it, such as Mistral's.
    """

    token_ids: bool = False
    logprobs: bool = False
    usage: bool = False

    def __bool__(self) -> bool:
        return self.token_ids or self.logprobs or self.usage

    def strip(self, body: Json) -> bool:
        """Remove these fields from a response or from a chunk of a stream, in place.

        Returns:
            Whether the chunk is empty now, so that it should not be sent.
        """
        choices: list[Json] = body.get("choices") or []
        if self.usage and "usage" in body and (not choices or body["usage"] is None):
            if body["usage"] is not None:
                return True
            del body["usage"]
        if self.token_ids:
            body.pop("prompt_token_ids", None)
            for choice in choices:
                choice.pop("token_ids", None)
                choice.pop("prompt_token_ids", None)
        if self.logprobs:
            for choice in choices:
                if choice.get("logprobs") is not None:
                    choice["logprobs"] = None
        return False


NO_EXTRA_FIELDS: Final = ExtraFields()
