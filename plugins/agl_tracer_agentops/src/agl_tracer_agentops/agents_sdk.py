"""The AgentOps instrumentor of the OpenAI Agents SDK, with correctly nested spans.

AgentOps turns the framework's traces into spans that are never the current span, so the spans of
model calls are not below the agent that made them. Here each of these spans is the current one
while its agent, handoff or tool runs.
"""

from __future__ import annotations

from typing import Any, ClassVar

from agentops.instrumentation.agentic.openai_agents.exporter import OpenAIAgentsExporter
from agentops.instrumentation.agentic.openai_agents.instrumentor import OpenAIAgentsInstrumentor
from agentops.instrumentation.agentic.openai_agents.processor import OpenAIAgentsProcessor
from agents.tracing import get_trace_provider
from agents.tracing.processor_interface import TracingProcessor

from agl_tracer_otel import EnteredSpan, enter_span

__all__ = ["AgentsInstrumentor"]


class AgentsInstrumentor(OpenAIAgentsInstrumentor):
    """Replaces the framework's own trace processor, which sends to OpenAI's service."""

    _instance: ClassVar[Any] = None

    def _instrument(self, **kwargs: Any) -> None:
        provider: Any = get_trace_provider()
        self._previous = provider._multi_processor._processors
        exporter = OpenAIAgentsExporter(tracer_provider=kwargs["tracer_provider"])
        provider.set_processors([_NestingProcessor(exporter)])

    def _uninstrument(self, **kwargs: Any) -> None:
        provider: Any = get_trace_provider()
        provider.set_processors(list(self._previous))


class _NestingProcessor(OpenAIAgentsProcessor, TracingProcessor):
    """Makes each span the current one from its start to its end."""

    def __init__(self, exporter: OpenAIAgentsExporter) -> None:
        super().__init__(exporter)
        self._entered: dict[str, EnteredSpan] = {}

    def on_trace_start(self, sdk_trace: Any) -> None:
        super().on_trace_start(sdk_trace)
        self._enter(sdk_trace.trace_id)

    def on_trace_end(self, sdk_trace: Any) -> None:
        self._leave(sdk_trace.trace_id)
        super().on_trace_end(sdk_trace)

    def on_span_start(self, span: Any) -> None:
        super().on_span_start(span)
        self._enter(span.span_id)

    def on_span_end(self, span: Any) -> None:
        self._leave(span.span_id)
        super().on_span_end(span)

    def _enter(self, key: str) -> None:
        found = self.exporter._active_spans.get(key)
        if found is not None:
            self._entered[key] = enter_span(found["span"])

    def _leave(self, key: str) -> None:
        entered = self._entered.pop(key, None)
        if entered is not None:
            entered.leave()
