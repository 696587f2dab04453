"""The AgentOps instrumentor of the Anthropic client, with our wrappers of Messages calls."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from agentops.instrumentation.providers.anthropic import AnthropicInstrumentor as _SdkInstrumentor

from agl_tracer_agentops.calls import wrap_calls

__all__ = ["AnthropicInstrumentor"]

_MESSAGES: Final = ("anthropic.messages.create", "messages")
_METHODS: Final = {
    (module, f"Messages.{method}"): _MESSAGES
    for module in ("anthropic.resources.messages", "anthropic.resources.beta.messages")
    for method in ("create", "parse", "stream")
}


class AnthropicInstrumentor(_SdkInstrumentor):
    """Wraps Messages calls with our wrappers, and legacy completions with AgentOps'."""

    _instance: ClassVar[Any] = None  # each instrumentor class is a singleton

    def __init__(self) -> None:
        super().__init__()
        methods = self.config.wrapped_methods
        self.config.wrapped_methods = [m for m in methods if "completions" in m.package]

    def _custom_wrap(self, **kwargs: Any) -> None:
        wrap_calls(self._tracer, _METHODS)
