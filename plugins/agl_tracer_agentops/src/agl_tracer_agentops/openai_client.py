"""The SDK's instrumentor of the OpenAI client, with our wrappers around the calls that matter."""

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
    # Where `parse` was before 1.92.
    ("openai.resources.beta.chat.completions", "Completions.parse"): _CHAT,
    ("openai.resources.responses", "Responses.create"): _RESPONSES,
    ("openai.resources.responses", "Responses.parse"): _RESPONSES,
}


class OpenAIInstrumentor(OpenaiInstrumentor):
    """Chat and Responses by our wrappers, everything else by the SDK's."""

    _instance: ClassVar[Any] = None  # instrumentors are singletons, by class

    def _custom_wrap(self, **kwargs: Any) -> None:
        wrap_calls(self._tracer, _METHODS)
