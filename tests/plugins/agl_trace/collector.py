"""A strict OTLP/HTTP collector: refuses requests that violate the protocol, and keeps others."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

Answer = tuple[int, bytes, dict[str, str]]
PROTOBUF = {"Content-Type": "application/x-protobuf"}


class Collector:
    """Listens on a free port of loopback while its context is open.

    Attributes:
        requests: Accepted export requests, in order.
        headers: Headers of every request, accepted or not.
        answers: Responses to the next requests, sent before their bodies are read.
    """

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[Answer | Callable[[], Answer]] = []
        self.problems: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.headers.append({k.lower(): v for k, v in self.headers.items()})
                status, said, headers = collector.take(self.path, self.headers, body)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(said))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for group in request.resource_spans
            for scope in group.scope_spans
            for span in scope.spans
        ]

    def take(self, path: str, headers: Any, body: bytes) -> Answer:
        if self.answers:
            answer = self.answers.pop(0)
            return answer() if callable(answer) else answer
        try:
            request = check(path, headers, body)
        except AssertionError as error:
            self.problems.append(str(error))
            return 400, str(error).encode(), {"Content-Type": "text/plain"}
        self.requests.append(request)
        return 200, ExportTraceServiceResponse().SerializeToString(), PROTOBUF


def check(path: str, headers: Any, body: bytes) -> ExportTraceServiceRequest:
    """Check a request by opentelemetry.io/docs/specs/otlp and the comments in trace.proto."""
    assert path == "/v1/traces", f"wrong path {path}"
    assert headers["Content-Type"] == "application/x-protobuf", "wrong content type"
    assert headers["Content-Encoding"] == "gzip", "not gzipped"
    request = ExportTraceServiceRequest.FromString(gzip.decompress(body))
    assert request.resource_spans, "no spans"
    for group in request.resource_spans:
        unique(group.resource.attributes)
        assert group.scope_spans, "a resource without scopes"
        for scope in group.scope_spans:
            assert scope.spans, "a scope without spans"
            for span in scope.spans:
                check_span(span)
    return request


def check_span(span: Any) -> None:
    assert len(span.trace_id) == 16 and any(span.trace_id), "bad trace id"
    assert len(span.span_id) == 8 and any(span.span_id), "bad span id"
    assert len(span.parent_span_id) in (0, 8), "bad parent id"
    assert span.parent_span_id != span.span_id, "its own parent"
    assert span.name, "no name"
    assert 1 <= span.kind <= 5, "bad kind"
    assert span.end_time_unix_nano >= span.start_time_unix_nano, "ends before it starts"
    assert 0 <= span.status.code <= 2, "bad status"
    unique(span.attributes)
    for event in span.events:
        assert event.name, "an event without a name"
        unique(event.attributes)
    for link in span.links:
        assert len(link.trace_id) == 16 and len(link.span_id) == 8, "bad link"
        unique(link.attributes)


def unique(pairs: Any) -> None:
    keys = [pair.key for pair in pairs]
    assert all(keys), "an empty key"
    assert len(keys) == len(set(keys)), f"a key twice: {keys}"
    for pair in pairs:
        assert pair.value.WhichOneof("value"), f"{pair.key} has no value"
