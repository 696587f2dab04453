"""The AgentOps instrumentor of the Anthropic client, without Messages calls."""

from __future__ import annotations

from typing import Any, ClassVar

from agentops.instrumentation.providers.anthropic import AnthropicInstrumentor as _SdkInstrumentor

__all__ = ["AnthropicInstrumentor"]


class AnthropicInstrumentor(_SdkInstrumentor):
    """Wraps legacy completions only: the tracer records Messages calls itself."""

    _instance: ClassVar[Any] = None  # each instrumentor class is a singleton

    def __init__(self) -> None:
        super().__init__()
        methods = self.config.wrapped_methods
        self.config.wrapped_methods = [m for m in methods if "completions" in m.package]

    def _custom_wrap(self, **kwargs: Any) -> None:
        """Wrap nothing: AgentOps wraps the Messages helper here."""
