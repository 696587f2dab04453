"""An agent's request as the arguments of LiteLLM's functions.

Those take, beside what goes to the model, hundreds of arguments that steer LiteLLM itself: where
the call goes, with which key, what it is mocked with. None of them is an agent's to choose, so only
known parameters of models become arguments.
"""

from __future__ import annotations

from typing import Any, Final

from agl_proxy_direct import CallError

__all__ = ["arguments"]

Json = dict[str, Any]

_CARRIERS: Final = frozenset({"input", "messages", "model", "prompt", "stream", "stream_options"})
"""What LiteLLM itself must know of a call."""

# OpenAI API reference, "Chat", "Completions", "Embeddings" and "Responses"; the last line is what
# other providers have in common and LiteLLM says in each one's way.
_NAMES: Final = """
    audio best_of echo frequency_penalty function_call functions logit_bias logprobs
    max_completion_tokens max_tokens modalities n parallel_tool_calls prediction presence_penalty
    reasoning_effort response_format seed service_tier stop suffix temperature tool_choice tools
    top_logprobs top_p user verbosity web_search_options
    dimensions encoding_format
    background conversation include instructions max_output_tokens max_tool_calls
    previous_response_id reasoning text truncation
    thinking top_k
"""
_PARAMETERS: Final = _CARRIERS | set(_NAMES.split())
_BOOK_KEEPING: Final = frozenset(
    {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "store"}
)
"""OpenAI's own, which other providers have no use for and which changes no answer."""


def arguments(body: Json, *, openai: bool) -> Json:
    """Return the keyword arguments that carry a request.

    Args:
        body: The request, as OpenAI's API has it.
        openai: Whether the server speaks that, too; it gets the request as it is.

    Raises:
        CallError: It has a parameter that no other provider is known to take.
    """
    if openai:
        found = {key: value for key, value in body.items() if key in _CARRIERS}
        rest = {key: value for key, value in body.items() if key not in _CARRIERS}
        return {**found, "extra_body": rest} if rest else found
    found = {key: value for key, value in body.items() if value is not None}
    for key in _BOOK_KEEPING & found.keys():
        del found[key]
    if unknown := sorted(found.keys() - _PARAMETERS):
        raise CallError(
            400,
            f"{', '.join(unknown)}: no parameters of OpenAI's, which is what LiteLLM translates; "
            "parameters of a provider belong into litellm_params of the model list",
            "unknown_parameter",
        )
    return found
