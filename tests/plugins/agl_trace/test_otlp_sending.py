"""Sending to backends: a strict collector, the store server, and faulty backends."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from agl_core.errors import ConfigError, TraceExportError
from agl_core.types import Span
from agl_testing.ports import held_port
from agl_trace.otlp import send
from agl_trace.otlp.send import OtlpSender, SendOutcome, headers_from_environment, traces_url

from .collector import PROTOBUF, Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as collector:
        yield collector


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send, "_FIRST_DELAY", 0.01)


def spans(count: int, size: int = 0) -> list[Span]:
    return [
        Span.from_attributes(
            attributes={"text": "x" * size},
            rollout_id="ro-1",
            attempt_id="at-1",
            sequence_id=number,
            name="step",
        )
        for number in range(1, count + 1)
    ]


def test_requests_conform_to_the_protocol(collector):
    sender = OtlpSender(collector.url, {"x-api-key": "k"})
    assert sender.send(spans(3)) == SendOutcome(3)
    assert collector.problems == []
    assert [span.name for span in collector.spans] == ["step"] * 3
    assert collector.headers[0]["x-api-key"] == "k"


def test_many_spans_are_many_requests(collector):
    assert OtlpSender(collector.url).send(spans(1100)).sent == 1100
    assert len(collector.spans) == 1100
    assert len(collector.requests) == 3
    numbers = [span.attributes[-1].value.int_value for span in collector.spans]
    assert numbers == list(range(1, 1101))


def test_large_spans_are_split_by_size(collector):
    OtlpSender(collector.url).send(spans(10, size=1_000_000))
    assert len(collector.spans) == 10
    assert all(request.ByteSize() <= 4 * 1024 * 1024 for request in collector.requests)


def test_requests_that_are_too_large_are_split(collector):
    collector.answers = [(413, b"too large", {})]
    assert OtlpSender(collector.url).send(spans(5)).sent == 5
    assert [span.name for span in collector.spans] == ["step"] * 5
    assert len(collector.requests) == 2
    collector.answers = [(413, b"too large", {})]
    with pytest.raises(TraceExportError, match="answered 413"):
        OtlpSender(collector.url).send(spans(1))


def test_the_outcome_counts_spans_that_the_backend_drops(collector):
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = 2
    answer.partial_success.error_message = "no room"
    collector.answers = [
        (200, gzip.compress(answer.SerializeToString()), {**PROTOBUF, "Content-Encoding": "gzip"})
    ]
    assert OtlpSender(collector.url).send(spans(3)) == SendOutcome(3, 2, "no room")


def corrupt(at: int) -> bytes:
    body = bytearray(gzip.compress(b"answer" * 100, mtime=0))  # a time would change names of tests
    body[at] ^= 0xFF
    return bytes(body)


@pytest.mark.parametrize("body", [corrupt(0), corrupt(10), corrupt(-6), b"", corrupt(-6)[:20]])
def test_the_status_counts_where_an_answer_is_corrupt(collector, body):
    headers = {**PROTOBUF, "Content-Encoding": "gzip"}
    collector.answers = [(200, body, headers), (400, body, headers)]
    sender = OtlpSender(collector.url)
    assert sender.send(spans(1)) == SendOutcome(1)
    with pytest.raises(TraceExportError, match=r"answered 400 Bad Request$"):
        sender.send(spans(1))


@pytest.mark.parametrize(
    ("name", "value"), [("x-key", "secret\nb"), ("x-key", "secret€"), ("x key", "b"), ("", "b")]
)
def test_a_header_that_http_cannot_carry_is_refused(name, value):
    with pytest.raises(ConfigError, match="header") as raised:
        OtlpSender("http://h", {name: value})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_transient_errors_are_retried(collector, status):
    collector.answers = [(status, b"later", {"Retry-After": "0"}), (status, b"later", {})]
    assert OtlpSender(collector.url).send(spans(1)).sent == 1
    assert len(collector.headers) == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((400, b"\x12\x08bad body", PROTOBUF), "answered 400 Bad Request: bad body"),
        ((401, b"<p>\nno\x1b[31m key</p>", {}), "answered 401 Unauthorized: <p> no [31m key</p>"),
        ((500, b"", {}), "answered 500 Internal Server Error"),
        ((302, b"", {"Location": "http://else"}), "it has moved to http://else"),
    ],
)
def test_permanent_errors_are_not_retried(collector, answer, message):
    collector.answers = [answer]
    with pytest.raises(TraceExportError) as raised:
        OtlpSender(collector.url).send(spans(1))
    assert message in str(raised.value)
    assert len(collector.headers) == 1


def test_a_missing_backend():
    refused = pytest.raises(TraceExportError, match=r"cannot reach http://127.* refused")
    with held_port() as port, refused:
        OtlpSender(f"http://127.0.0.1:{port}", tries=2).send(spans(1))


def test_a_backend_that_does_not_answer():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = OtlpSender(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1, tries=2)
        with pytest.raises(TraceExportError, match="timed out"):
            sender.send(spans(1))


def test_closing_ends_the_waiting(collector):
    collector.answers = [(503, b"", {"Retry-After": "20"})] * 5
    sender = OtlpSender(collector.url)
    threading.Timer(0.1, sender.close).start()
    start = time.monotonic()
    with pytest.raises(TraceExportError, match="503"):
        sender.send(spans(1))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:4318", "http://h:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("https://h/otel?x=1", "https://h/otel/v1/traces?x=1"),
        ("http://h/v1/traces", "http://h/v1/traces"),
        ("http://h/api/v0.2/traces", "http://h/api/v0.2/traces"),
    ],
)
def test_where_traces_go(url, expected):
    assert traces_url(url) == expected


@pytest.mark.parametrize("url", ["h:4318", "ftp://h", "http://", "http://h:x", "http://h:0", ""])
def test_an_invalid_url_is_refused(url):
    with pytest.raises(ConfigError, match="is not a URL of an OTLP backend"):
        traces_url(url)


def test_headers_of_the_environment(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=b")
    assert headers_from_environment() == {"a": "b"}
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "Authorization=Basic%20eDp5, x = 1,bad")
    assert headers_from_environment() == {"authorization": "Basic eDp5", "x": "1"}
