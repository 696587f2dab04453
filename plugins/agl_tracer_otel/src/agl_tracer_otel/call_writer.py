"""Describes model calls in the attributes of their spans."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, cast

from opentelemetry import trace

from agl_core import genai
from agl_core.genai import Json, Protocol, SseSplitter, dumps, get_protocol, loads

RECORDED_CLIENTS: Final = frozenset({"openai", "anthropic"})
"""Names of the client libraries whose calls are recorded."""


class CallWriter:
    """Describes calls in OpenTelemetry's GenAI conventions, as the proxies do.

    Derive from it to describe calls in other attributes. Token ids and log-probabilities must have
    the keys of a dialect that adapters know.

    Args:
        clients: Names of the client libraries whose calls are recorded.

    Attributes:
        proxied: Whether calls that a proxy of this framework records are recorded as well.
    """

    def __init__(self, clients: Collection[str] = RECORDED_CLIENTS) -> None:
        self.clients = frozenset(clients)
        self.proxied = True

    def request_attributes(self, protocol: Protocol, request: Json) -> Json:
        """Return the attributes of a request. Called in the exporter's thread."""
        chat = get_protocol(protocol).recorded_request(request)
        attributes = genai.request_attributes(chat)
        attributes["gen_ai.request.stream"] = bool(request.get("stream"))
        attributes["gen_ai.input.messages"] = dumps(genai.input_messages(chat)).decode()
        if request.get("model") is not None:
            attributes["gen_ai.request.model"] = request["model"]
        return attributes

    def response_attributes(self, protocol: Protocol, response: Json) -> Json:
        """Return the attributes of a response, which is partial if the agent did not read all of
        a stream. Called in the exporter's thread.
        """
        return genai.response_attributes(get_protocol(protocol).recorded_response(response))

    def ended(self, span: trace.Span, protocol: Protocol, body: bytes) -> None:
        """Add to a span that is about to end, or make spans below it. Called in the agent's thread.

        Args:
            span: The span of the call, not ended.
            protocol: Protocol of the call.
            body: The response, or the events of a stream, for :func:`read_body`.
        """


def read_body(protocol: Protocol, body: bytes) -> tuple[Json, str | None]:
    """Return the response in a body, whole or as a stream, and the error in the stream, if any.

    Raises:
        ValueError: Not valid JSON.
    """
    if body.lstrip()[:1] == b"{":
        return loads(body), None
    assembler = get_protocol(protocol).assembler()
    for event in SseSplitter().feed(body + b"\n\n"):
        if not event.data or event.data.startswith(b"[DONE]"):
            continue
        try:
            value: Any = loads(event.data)
        except ValueError:
            break  # the agent stopped reading here, or the connection broke
        if isinstance(value, dict):
            assembler.feed(cast("Json", value))
    return assembler.result(), assembler.error
