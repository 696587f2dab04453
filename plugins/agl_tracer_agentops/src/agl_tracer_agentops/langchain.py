"""A LangChain callback handler: chains, graphs and tools as spans around model calls.

AgentOps' own handler names every chain ``unknown_chain``, since LangChain stopped serialising
chains, and records each model call a second time as text. This handler writes AgentOps' attributes
and leaves model calls to the instrumentation of the clients.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from langchain_core.callbacks.base import BaseCallbackHandler
from opentelemetry import trace

from agl_core.otel import record_failure
from agl_tracer_otel import EnteredSpan, enter_span, live_context, to_jsonable

__all__ = ["LangChainHandler"]

_STEPS: Final = ("graph:step:", "seq:step:", "map:key:", "branch:")
"""Prefixes of tags that mark a run as a step of a chain or graph."""


class LangChainHandler(BaseCallbackHandler):
    """Records runs as spans of kind ``chain`` and ``tool``; thread-safe.

    An outermost chain and every graph counts as an agent: its name is in ``langchain.chain.type``.
    The name of a step is in ``langchain.step``.

    Args:
        tracer: Makes the spans.
        tags: Recorded on each outermost chain.
    """

    # Callbacks run on the agent's own thread and task, where the current span is set.
    run_inline = True

    def __init__(self, tracer: trace.Tracer, tags: Sequence[str] | None = None) -> None:
        self._tracer = tracer
        self._tags = list(tags or ())
        self._lock = threading.Lock()
        self._open: dict[UUID, EnteredSpan] = {}

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        name = str(kwargs.get("name") or (serialized or {}).get("name") or "chain")
        is_step = any(tag.startswith(_STEPS) for tag in tags or ())
        key = "langchain.step" if is_step else "langchain.chain.type"
        attributes: dict[str, Any] = {"agentops.span.kind": "chain", key: name}
        if parent_run_id is None and self._tags:
            attributes["langchain.tags"] = self._tags
        self._start(f"{name}.chain", attributes, run_id, parent_run_id)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, error)

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **kwargs: Any,
    ) -> None:
        name = str(kwargs.get("name") or (serialized or {}).get("name") or "tool")
        attributes = {"agentops.span.kind": "tool", "langchain.tool.name": name}
        attributes["langchain.tool.input"] = input_str
        self._start(f"{name}.tool", attributes, run_id, parent_run_id)

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        with self._lock:
            entered = self._open.get(run_id)
        try:
            if entered is not None:
                content = getattr(output, "content", output)
                entered.span.set_attribute("langchain.tool.output", str(to_jsonable(content)))
        finally:  # LangChain logs the error; the span must not stay the current one
            self._end(run_id)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._end(run_id, error)

    def _start(
        self, name: str, attributes: dict[str, Any], run_id: UUID, parent_run_id: UUID | None
    ) -> None:
        with self._lock:
            parent = self._open.get(parent_run_id) if parent_run_id else None
        context = live_context()
        if parent is not None:
            context = trace.set_span_in_context(parent.span, context)
        entered = enter_span(self._tracer.start_span(name, context, attributes=attributes))
        with self._lock:
            self._open[run_id] = entered

    def _end(self, run_id: UUID, error: BaseException | None = None) -> None:
        with self._lock:
            entered = self._open.pop(run_id, None)
        if entered is None:
            return  # the run started before the handler was added
        entered.leave()
        span = entered.span
        if error is None:
            span.set_status(trace.StatusCode.OK)
        else:
            record_failure(span, error)
        span.end()
