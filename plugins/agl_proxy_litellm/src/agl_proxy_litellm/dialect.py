"""The spans of LiteLLM's OpenTelemetry callback: ``litellm_request`` and ``raw_gen_ai_request``.

The first holds the GenAI conventions, which the core reads, with the token ids that a proxy of this
framework adds. The second holds the provider's own request and response.
"""

from __future__ import annotations

from typing import Final

from agl_core.adapter import Dialect, MessageShape

__all__ = ["LITELLM"]

_CHOICE: Final = MessageShape(inside="message")


def _raw(provider: str) -> Dialect:
    root = f"llm.{provider}"
    return Dialect(
        name=f"litellm raw {provider}",
        marks=(f"{root}.id", f"{root}.choices"),
        proxy_span="raw_gen_ai_request",
        response_id=(f"{root}.id",),
        prompt_ids=(f"{root}.prompt_token_ids",),
        response_ids=(f"{root}.response_token_ids/0", f"{root}.choices/0/token_ids"),
        logprobs=(f"{root}.choices/0/logprobs/content",),
        finish_reason=(f"{root}.choices/0/finish_reason",),
        model=(f"{root}.model",),
        input_tokens=(f"{root}.usage/prompt_tokens",),
        output_tokens=(f"{root}.usage/completion_tokens",),
        prompt=(f"{root}.messages",),
        completion=(f"{root}.choices",),
        completion_shape=_CHOICE,
        tools=(f"{root}.tools",),
    )


LITELLM: Final = (
    Dialect(
        name="litellm",
        proxy_span="litellm_request",
        response_id=("gen_ai.response/id",),
        prompt_ids=("prompt_token_ids",),
        response_ids=("response_token_ids",),
    ),
    _raw("hosted_vllm"),
    _raw("openai"),
    _raw("vllm"),
)
"""Both spans of a call."""
