"""A Weave client that turns calls into spans when they start and end."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from opentelemetry import trace
from weave.trace import weave_client
from weave.trace.call import Call
from weave.trace.context import call_context
from weave.trace.op_protocol import Op
from weave.utils.attributes_dict import AttributesDict

from agl_core import semconv
from agl_core.errors import error_message
from agl_core.genai import without_secrets
from agl_core.otel import record_failure
from agl_core.tracer import get_active_tracer
from agl_tracer_otel import (
    EnteredSpan,
    current_recording,
    enter_span,
    live_context,
    set_attributes_later,
    to_jsonable,
)
from agl_tracer_weave.attributes import (
    agent_name,
    input_attributes,
    nested_attributes,
    output_attributes,
    own_inputs,
    own_output,
)
from agl_tracer_weave.server import LocalTraceServer

__all__ = ["LocalWeaveClient"]

_logger = logging.getLogger(__name__)

_Open = tuple[trace.Span, EnteredSpan | None, object]
"""The span of an open call, what made it the current one, and the trace that it belongs to."""


class LocalWeaveClient(weave_client.WeaveClient):
    """Weave's client without a server.

    A call is an OpenTelemetry span, which is current while the call is on Weave's stack. So calls
    nest with all other spans and reach the store in the same way. Calls outside of a trace of a
    Weave tracer are not recorded.

    Args:
        project: Name of the project.
        tracer: Makes the spans.
    """

    def __init__(self, project: str, tracer: trace.Tracer) -> None:
        super().__init__(
            "local", project, cast("Any", LocalTraceServer()), ensure_project_exists=False
        )
        self._tracer = tracer
        self._open: dict[str, _Open] = {}
        self._steps: set[str] = set()  # ids of open calls that are steps of a LangChain chain

    def create_call(
        self,
        op: str | Op,
        inputs: dict[str, Any],
        parent: Call | None = None,
        attributes: dict[str, Any] | None = None,
        display_name: str | Callable[[Call], str] | None = None,
        *,
        use_stack: bool = True,
        _call_id_override: str | None = None,
        started_at: datetime.datetime | None = None,
    ) -> Call:
        """Start a call and its span; see Weave's ``WeaveClient.create_call``."""
        if not _is_traced() or weave_client.is_tracing_setting_disabled():
            return weave_client.placeholder_call()
        name = op if isinstance(op, str) else op.name
        agent = agent_name(name, inputs)
        if not isinstance(op, str):
            if weave_client.should_skip_tracing_for_op(op):
                return weave_client.placeholder_call()
            if op.postprocess_inputs:
                inputs = op.postprocess_inputs(inputs)
        if parent is None or parent.id not in self._open:
            parent = self._innermost() if use_stack else None
        call_id = _call_id_override or weave_client.generate_id()
        frozen = AttributesDict(**{**self.attributes, **(attributes or {})})
        call = Call(
            _op_name=name,
            project_id=self.project_id,
            trace_id=parent.trace_id if parent else call_id,
            parent_id=parent.id if parent else None,
            id=call_id,
            inputs=inputs,
            attributes=frozen,
            thread_id=call_context.get_thread_id(),
            started_at=started_at or datetime.datetime.now(datetime.UTC),
        )
        frozen.freeze()
        call.display_name = display_name(call) if callable(display_name) else display_name
        if parent is not None:
            parent._children.append(call)
        span = self._start_span(call, name, parent, use_stack=use_stack)
        try:
            known = self._call_attributes(call, attributes or {}, parent)
            if agent is not None:
                known["agent.name"] = agent
            span.set_attributes(known)
            own = own_inputs(inputs)
            # Spans leave the process, so secrets are removed here: those that the default tracer
            # removes, and those that the application has named to the SDK.
            set_attributes_later(
                span,
                lambda: input_attributes(
                    name, weave_client.redact_sensitive_keys(without_secrets(own))
                ),
            )
        except Exception:
            _logger.exception("the inputs of %s could not be recorded", name)
        if use_stack:
            call_context.push_call(call)
        return call

    def _innermost(self) -> Call | None:
        """Return the innermost open call on Weave's stack, which also holds ended calls."""
        stack = reversed(call_context._call_stack.get())
        return next((call for call in stack if call.id in self._open), None)

    def _start_span(
        self, call: Call, name: str, parent: Call | None, *, use_stack: bool
    ) -> trace.Span:
        outer = live_context()
        # The innermost call's span, or a span within it, is already the current one.
        above = self._open.get(parent.id or "") if parent is not None else None
        if above is None or parent is self._innermost():
            context = outer
        else:
            context = trace.set_span_in_context(above[0], outer)
        known = {semconv.TRACER_NAME: "weave", semconv.OPERATION_NAME: name}
        span = self._tracer.start_span(name, context=context, attributes=known)
        entered = enter_span(span) if use_stack else None
        self._open[call.id or ""] = (span, entered, current_recording())
        return span

    def _call_attributes(
        self, call: Call, attributes: Mapping[str, Any], parent: Call | None
    ) -> dict[str, Any]:
        kept = {k: v for k, v in attributes.items() if k not in {"weave", "integration"}}
        # A chain directly in a chain, e.g. a node of a graph, is a step and not an agent. A chain
        # in a step may be a graph of its own, unless it has a generic name.
        name = str(kept.get("lc_name", ""))
        chain = "langchain.Chain."
        inner = call.op_name.startswith(chain) and parent and parent.op_name.startswith(chain)
        if inner and (call.parent_id not in self._steps or name.startswith("Runnable")):
            kept["lc_step"] = kept.pop("lc_name")
            self._steps.add(call.id or "")
        return nested_attributes(to_jsonable(kept))

    def finish_call(
        self,
        call: Call,
        output: Any = None,
        exception: BaseException | None = None,
        *,
        op: Op | None = None,
        ended_at: datetime.datetime | None = None,
    ) -> None:
        """End a call and its span; see Weave's ``WeaveClient.finish_call``."""
        found = self._open.pop(call.id or "", None)
        if found is None:
            return
        span, entered, _ = found
        self._steps.discard(call.id or "")
        call.ended_at = ended_at or datetime.datetime.now(datetime.UTC)
        try:
            self._describe_end(span, call, output, exception, op)
        finally:  # Weave logs the error; the span must not stay the current one
            if entered is not None:
                entered.leave()
            span.end()
            call_context.pop_call(call.id)

    def finish_trace(self, root: Call, exception: BaseException | None = None) -> None:
        """End a trace's root call, and before it those that Weave has not finished.

        These are calls of streams that the agent has not read to their end, and of cancelled
        asynchronous generators.
        """
        recording = current_recording()
        for call_id, (span, _, owner) in list(self._open.items()):
            if owner is recording and call_id != root.id and self._open.pop(call_id, None):
                self._steps.discard(call_id)
                span.end()
        self.finish_call(root, exception=exception)

    def _describe_end(
        self,
        span: trace.Span,
        call: Call,
        output: Any,
        exception: BaseException | None,
        op: Op | None,
    ) -> None:
        name = call.op_name
        if exception is not None:
            call.exception = error_message(exception)
            set_attributes_later(span, lambda: {"exception.message": call.exception})
            record_failure(span, exception)
        written = op.postprocess_output(output) if op and op.postprocess_output else output
        call.output = written
        if op is not None and op._on_finish_handler:
            op._on_finish_handler(call, output, exception)
        try:
            own = own_output(written)
            summary = to_jsonable({"summary": call.summary or {}})
            set_attributes_later(
                span, lambda: output_attributes(name, own) | nested_attributes(summary)
            )
        except Exception:
            _logger.exception("the output of %s could not be recorded", name)


def _is_traced() -> bool:
    """Return whether the innermost trace is one of a Weave tracer.

    The client is the process's, so it also sees calls in traces of other tracers, which record
    model calls themselves.
    """
    from agl_tracer_weave.tracer import WeaveTracer

    return current_recording() is not None and isinstance(get_active_tracer(), WeaveTracer)
