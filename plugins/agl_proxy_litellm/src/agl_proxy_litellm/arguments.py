"""An agent's request as keyword arguments of LiteLLM's functions.

These functions also take hundreds of arguments that control LiteLLM itself: the URL, the API key,
mock responses. An agent must not choose those, so only known parameters of models become arguments.
"""

from __future__ import annotations

from typing import Any, Final, cast

from agl_proxy_direct import CallError

__all__ = ["PARAMETERS", "arguments"]

Json = dict[str, Any]

_CARRIERS: Final = frozenset({"input", "messages", "model", "prompt", "stream", "stream_options"})
"""Arguments that LiteLLM reads itself."""

# OpenAI API reference, "Chat", "Completions", "Embeddings" and "Responses". The last line holds
# parameters that other providers share and LiteLLM translates.
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
PARAMETERS: Final = _CARRIERS | set(_NAMES.split())
"""Parameters of models, which do not control LiteLLM."""
_OPENAI_ONLY: Final = frozenset(
    {"metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "store"}
)
"""Parameters of OpenAI alone that do not change a response; not sent to other providers."""


def arguments(body: Json, *, openai: bool) -> Json:
    """Return the keyword arguments that carry a request.

    Args:
        body: The request in OpenAI's format.
        openai: Whether the server speaks OpenAI's protocol; it then gets every parameter.

    Raises:
        CallError: 400, a parameter is unknown to LiteLLM's translation, or the messages are not a
            list of objects, which LiteLLM takes for granted.
    """
    messages: Any = body.get("messages", [])
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) for message in cast("list[Any]", messages)
    ):
        raise CallError(400, "messages must be a list of objects", "invalid_messages")
    if openai:
        found = {key: value for key, value in body.items() if key in _CARRIERS}
        rest = {key: value for key, value in body.items() if key not in _CARRIERS}
        return {**found, "extra_body": rest} if rest else found
    found = {key: value for key, value in body.items() if value is not None}
    for key in _OPENAI_ONLY & found.keys():
        del found[key]
    if unknown := sorted(found.keys() - PARAMETERS):
        raise CallError(
            400,
            f"{', '.join(unknown)}: LiteLLM translates only OpenAI's parameters; set a "
            "provider's own in litellm_params of the model list",
            "unknown_parameter",
        )
    return found
