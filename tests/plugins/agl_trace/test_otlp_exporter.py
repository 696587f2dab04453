"""The exporter that can be switched to a store, with OpenTelemetry's own span processors."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExportResult,
)
from opentelemetry.trace import SpanKind

from agl_store_http import LightningStoreServer
from agl_store_memory import InMemoryLightningStore
from agl_trace.otlp.exporter import LightningStoreOTLPExporter


class Sending(LightningStoreOTLPExporter):
    def should_bypass(self) -> bool:
        return False


@pytest.fixture
def provider() -> Iterator[TracerProvider]:
    provider = TracerProvider(resource=Resource({"service.name": "agent"}), shutdown_on_exit=False)
    yield provider
    provider.shutdown()


@pytest.fixture
async def server():
    server = LightningStoreServer(InMemoryLightningStore(), port=0)
    await server.start()
    yield server
    await server.stop()


async def test_spans_reach_the_store_in_store_mode_only(server, provider):
    exporter = LightningStoreOTLPExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("scope")
    started = await server.start_rollout("task")
    ids = started.rollout_id, started.attempt.attempt_id

    tracer.start_span("before").end()
    exporter.enable_store_otlp(server.otlp_traces_endpoint(), *ids)
    assert exporter.endpoint == server.otlp_traces_endpoint()
    with tracer.start_as_current_span("parent", kind=SpanKind.CLIENT):
        tracer.start_span("child", attributes={"ids": [1, 2]}).end()
    exporter.disable_store_otlp()
    tracer.start_span("after").end()

    child, parent = (await server.query_spans(ids[0])).items
    assert (child.name, parent.name) == ("child", "parent")
    assert child.parent_id == parent.span_id
    assert child.attributes == {"ids": [1, 2]}
    assert child.resource.attributes["service.name"] == "agent"
    assert (child.rollout_id, child.attempt_id) == ids
    assert (child.sequence_id, parent.sequence_id) == (1, 2)  # drawn by the store


async def test_a_batch_processor_flushes_into_the_store(server, provider):
    exporter = LightningStoreOTLPExporter()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    started = await server.start_rollout("task")
    exporter.enable_store_otlp(
        server.otlp_traces_endpoint(), started.rollout_id, started.attempt.attempt_id
    )
    for number in range(700):
        provider.get_tracer("scope").start_span(f"span {number}").end()
    assert provider.force_flush()
    names = {span.name for span in (await server.query_spans(started.rollout_id)).items}
    assert names == {f"span {number}" for number in range(700)}


async def test_outside_store_mode_a_subclass_may_send_elsewhere(server, provider):
    started = await server.start_rollout("task")
    span = provider.get_tracer("scope").start_span(
        "mine",
        attributes={
            "agentlightning.rollout_id": started.rollout_id,
            "agentlightning.attempt_id": started.attempt.attempt_id,
        },
    )
    span.end()
    exporter = Sending(server.endpoint, {})
    assert exporter.endpoint == server.endpoint
    assert exporter.export([span]) is SpanExportResult.SUCCESS  # pyright: ignore[reportArgumentType]
    (stored,) = (await server.query_spans(started.rollout_id)).items
    assert stored.name == "mine"
    assert "agentlightning.rollout_id" not in stored.resource.attributes


async def test_failures_are_logged_and_never_raised(provider, caplog, server):
    span = provider.get_tracer("scope").start_span("mine")
    span.end()
    exporter = LightningStoreOTLPExporter(tries=1)
    exporter.enable_store_otlp("http://127.0.0.1:1", "r", "a")
    with caplog.at_level(logging.WARNING):
        assert exporter.export([span]) is SpanExportResult.FAILURE  # pyright: ignore[reportArgumentType]
        assert "1 spans were not exported: cannot reach http://127.0.0.1:1" in caplog.text
        exporter.enable_store_otlp(server.endpoint, "ro-none", "at-none")
        assert exporter.export([span]) is SpanExportResult.SUCCESS  # pyright: ignore[reportArgumentType]
        assert "1 spans were dropped" in caplog.text
    exporter.shutdown()
    assert exporter.export([span]) is SpanExportResult.FAILURE  # pyright: ignore[reportArgumentType]


def test_the_endpoint_comes_from_the_environment(monkeypatch):
    assert LightningStoreOTLPExporter().endpoint == "http://localhost:4318"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a")
    assert LightningStoreOTLPExporter().endpoint == "http://a"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b")
    assert LightningStoreOTLPExporter().endpoint == "http://b"
    assert LightningStoreOTLPExporter("http://c").force_flush()
