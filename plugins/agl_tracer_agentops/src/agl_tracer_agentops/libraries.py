"""Which libraries are instrumented, each when it is imported.

The SDK's own rule is: as soon as one agent framework is imported, it alone is instrumented and
model clients no longer are. Training needs the model's calls, so here clients always are, and
frameworks beside them for the names of agents and tools.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from agl_core.tracer import (
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
"""The SDK's LangGraph instrumentation records its model calls a second time, without tokens;
:meth:`~agl_tracer_agentops.tracer.AgentOpsTracer.get_langchain_handler` is the way."""


@contextmanager
def instrumented_on_import(
    provider: TracerProvider,
) -> Generator[Callable[[], InstrumentationReport]]:
    """Instrument every library the SDK knows from its import on, for a ``with`` block.

    Yields:
        A function that says which libraries are instrumented by now, and which could not be.
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
