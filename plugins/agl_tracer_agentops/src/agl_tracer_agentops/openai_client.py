"""The AgentOps instrumentor of the OpenAI client, without the calls that the core records."""

from __future__ import annotations

from typing import Any, ClassVar

from agentops.instrumentation.providers.openai import OpenaiInstrumentor

__all__ = ["OpenAIInstrumentor"]


class OpenAIInstrumentor(OpenaiInstrumentor):
    """Wraps calls that the tracer does not record itself, such as embeddings and images."""

    _instance: ClassVar[Any] = None  # each instrumentor class is a singleton

    def __init__(self) -> None:
        super().__init__()
        methods = self.config.wrapped_methods
        recorded = "openai.resources.completions"
        self.config.wrapped_methods = [m for m in methods if m.package != recorded]

    def _custom_wrap(self, **kwargs: Any) -> None:
        """Wrap nothing: AgentOps wraps chat and Responses calls here."""
