"""OpenAI's text completions.

Format: OpenAI API reference, "Completions". A prompt without messages has no equivalent in other
protocols, so calls are not translated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Final, cast

from agl_core.genai._extra import ExtraFields
from agl_core.genai._parts import as_list, object_at, objects_in
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
    sampled_logprobs = 0

    def choices_of(self, request: Json) -> int:
        return super().choices_of(request) * prompts_in(request)

    def assembler(self, choices: int = 1) -> CompletionAssembler:
        return CompletionAssembler(choices)

    def recorded_response(self, response: Json) -> Json:
        choices = [
            _of_the_sampled(choice, response) for choice in objects_in(response.get("choices"))
        ]
        return {**response, "choices": choices}

    def request_extra(self, body: Json, wanted: ExtraFields) -> ExtraFields:
        if body.get("echo"):
            # Asked for token ids, vLLM leaves the prompt out of the text that it echoes; asked for
            # log-probabilities, it computes those of the prompt as well.
            wanted = replace(wanted, token_ids=False, logprobs=False)
        return request_extra(body, wanted, logprobs=self.sampled_logprobs)


def prompts_in(request: Json) -> int:
    """Return how many prompts a request has: a text or a list of token ids is one."""
    prompts = as_list(request.get("prompt"))
    return 1 if not prompts or isinstance(prompts[0], int) else len(prompts)


def _of_the_sampled(choice: Json, response: Json) -> Json:
    """Return a choice without the log-probabilities of an echoed prompt.

    vLLM puts them before those of the sampled tokens, and its ids are those of the latter alone.
    """
    logprobs, ids = object_at(choice, "logprobs"), choice.get("token_ids")
    echoed = len(as_list(logprobs.get("token_logprobs"))) - len(as_list(ids))
    if ids is None or echoed <= 0:
        return choice
    prompt = as_list(choice.get("prompt_token_ids") or response.get("prompt_token_ids"))
    if prompt and len(prompt) != echoed:
        return {**choice, "logprobs": None}  # without an answer they are of the prompt alone
    cut = {key: _from(value, echoed) for key, value in logprobs.items()}
    return {**choice, "logprobs": cut}


def _from(value: Any, start: int) -> Any:
    return cast("list[Any]", value)[start:] if isinstance(value, list) else value


PROTOCOL: Final = Completions()
