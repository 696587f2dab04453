"""The AgentOps instrumentor of the OpenAI client, with our wrappers of chat and Responses calls."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from agentops.instrumentation.providers.openai import OpenaiInstrumentor

from agl_tracer_agentops.calls import wrap_calls

__all__ = ["OpenAIInstrumentor"]

_CHAT: Final = ("openai.chat.completion", "chat")
_RESPONSES: Final = ("openai.responses.create", "responses")
_METHODS: Final = {
    ("openai.resources.chat.completions", "Completions.create"): _CHAT,
    ("openai.resources.chat.completions", "Completions.parse"): _CHAT,
    # `parse` was here before openai 1.92.
    ("openai.resources.beta.chat.completions", "Completions.parse"): _CHAT,
    ("openai.resources.responses", "Responses.create"): _RESPONSES,
    ("openai.resources.responses", "Responses.parse"): _RESPONSES,
}


class OpenAIInstrumentor(OpenaiInstrumentor):
    """Wraps chat and Responses calls with our wrappers, and all others with AgentOps'."""

    _instance: ClassVar[Any] = None  # each instrumentor class is a singleton

    def _custom_wrap(self, **kwargs: Any) -> None:
        wrap_calls(self._tracer, _METHODS)
