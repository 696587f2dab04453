"""Describes recorded model calls in AgentOps' vocabulary, with a span per tool call."""

from __future__ import annotations

from opentelemetry import trace

from agl_core.genai import Json, Protocol, get_protocol
from agl_tracer_agentops.attributes import request_attributes, response_attributes, tool_calls
from agl_tracer_otel import CallWriter, get_tracer, read_body

__all__ = ["AgentOpsCallWriter"]

_MARKS = (b'"tool_calls"', b'"tool_use"', b'"function_call"')


class AgentOpsCallWriter(CallWriter):
    """Replaces AgentOps' own wrappers of calls, which break streams.

    AgentOps replaces a stream by an object of another type, and reads an Anthropic stream to its
    end before the agent does.
    """

    def request_attributes(self, protocol: Protocol, request: Json) -> Json:
        return request_attributes(protocol, request)

    def response_attributes(self, protocol: Protocol, response: Json) -> Json:
        return response_attributes(get_protocol(protocol).recorded_response(response))

    def ended(self, span: trace.Span, protocol: Protocol, body: bytes) -> None:
        """Make a span for each tool call of the response."""
        if not any(mark in body for mark in _MARKS):
            return
        response, _ = read_body(protocol, body)
        context = trace.set_span_in_context(span)
        for call in tool_calls(get_protocol(protocol).recorded_response(response)):
            tool = {
                "agentops.span.kind": "tool",
                "tool.name": call["name"],
                "tool.parameters": call["arguments"] or "",
                "tool.call.id": call["id"] or "",
                "tool.call.type": "function",
            }
            name = f"tool_call.{call['name']}"
            get_tracer().start_span(name, context=context, attributes=tool).end()
