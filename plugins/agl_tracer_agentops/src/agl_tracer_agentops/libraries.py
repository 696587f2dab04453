"""Instruments libraries when they are imported.

AgentOps stops instrumenting model clients as soon as it instruments an agent framework. Training
needs the model calls, so here clients are always instrumented, and frameworks too, for the names of
agents and tools.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from agl_tracer_otel import (
    InstrumentationReport,
    Instrumentor,
    acquire_instrumentor,
    on_import,
    release_instrumentor,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["instrumented_on_import"]

_logger = logging.getLogger(__name__)

_SKIPPED: Final = frozenset({"langgraph"})
"""AgentOps' LangGraph instrumentation records model calls a second time, without token ids. Use
:meth:`~agl_tracer_agentops.AgentOpsTracer.get_langchain_handler` instead."""


@contextmanager
def instrumented_on_import(
    provider: TracerProvider,
) -> Generator[Callable[[], InstrumentationReport]]:
    """Instrument every library that AgentOps knows when it is imported, for a ``with`` block.

    Yields:
        A function that returns which libraries are instrumented, and which failed.
    """
    active: list[str] = []
    problems: dict[str, str] = {}
    lock = threading.Lock()
    closed = False

    def instrument(name: str) -> None:
        with lock:
            if closed:
                return
        try:
            acquire_instrumentor(f"agentops:{name}", lambda: _instrumentor(name), provider)
        except Exception as error:
            _logger.warning("cannot instrument %r with AgentOps: %s", name, error)
            problems[name] = str(error)
        else:
            with lock:
                active.append(name)
                late = closed
            if late:
                release_instrumentor(f"agentops:{name}")

    def report() -> InstrumentationReport:
        with lock:
            return InstrumentationReport(tuple(sorted(active)), dict(problems))

    try:
        with on_import(_known() - _SKIPPED, instrument):
            yield report
    finally:
        with lock:
            closed = True
            names = list(reversed(active))
        for name in names:
            release_instrumentor(f"agentops:{name}")


def _known() -> frozenset[str]:
    from agentops.instrumentation import AGENTIC_LIBRARIES, PROVIDERS

    return frozenset(PROVIDERS) | frozenset(AGENTIC_LIBRARIES)


def _instrumentor(name: str) -> Instrumentor:
    from agentops.instrumentation import AGENTIC_LIBRARIES, PROVIDERS, InstrumentorLoader

    if name == "openai":
        from agl_tracer_agentops.openai_client import OpenAIInstrumentor

        return OpenAIInstrumentor()
    if name == "anthropic":
        from agl_tracer_agentops.anthropic_client import AnthropicInstrumentor

        return AnthropicInstrumentor()
    if name == "agents":
        from agl_tracer_agentops.agents_sdk import AgentsInstrumentor

        return AgentsInstrumentor()
    config: Any = {**PROVIDERS, **AGENTIC_LIBRARIES}[name]
    loader = InstrumentorLoader(**config)
    if not loader.should_activate:
        raise RuntimeError(f"AgentOps needs {name} {config['min_version']} or newer")
    return loader.get_instance()
